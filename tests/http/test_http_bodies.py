"""JSON bodies: where they are decoded, and how many large ones are in memory."""

import asyncio
import threading

import pytest
from starlette.requests import ClientDisconnect, Request

from localrun.http.refusals import BodyTooSlow
from localrun.http.requests import Bodies

LARGE = b"x" * 101


class Upload:
    """A request whose body the test sends piece by piece."""

    def __init__(self, *pieces):
        self._messages = asyncio.Queue()
        self.n_read = 0
        for piece in pieces:
            self.send(piece)
        self.request = Request({"type": "http", "headers": []}, self._receive)

    def send(self, piece, *, more=True):
        self._messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def hang_up(self):
        self._messages.put_nowait({"type": "http.disconnect"})

    async def _receive(self):
        message = await self._messages.get()
        self.n_read += 1
        return message


def run(main):
    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize(("body", "is_here"), [(b"x" * 100, True), (LARGE, False)])
def test_a_large_body_is_decoded_in_a_thread(body, is_here):
    async def main():
        upload = Upload(body[:50])
        upload.send(body[50:], more=False)
        bodies = Bodies(large_bytes=100)
        found = await bodies.decoded(
            upload.request, lambda whole: (whole, threading.current_thread())
        )
        assert found[0] == body
        assert (found[1] is threading.current_thread()) == is_here

    run(main)


def test_what_the_decoder_raises_reaches_the_handler_from_either_place():
    def refuse(body):
        raise ValueError("no")

    async def main():
        for body in (b"x", LARGE):
            upload = Upload()
            upload.send(body, more=False)
            with pytest.raises(ValueError, match="no"):
                await Bodies(large_bytes=100).decoded(upload.request, refuse)

    run(main)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_no_more_large_bodies_are_read_than_memory_is_for():
    async def main():
        bodies = Bodies(large_bytes=100, n_large=2)
        uploads = [Upload(LARGE, b"y") for _ in range(3)]
        tasks = [asyncio.ensure_future(bodies.decoded(u.request, len)) for u in uploads]
        await settle()
        assert [upload.n_read for upload in uploads] == [2, 2, 1]
        small = Upload()
        small.send(b"s", more=False)
        assert await bodies.decoded(small.request, len) == 1
        uploads[0].send(b"", more=False)
        assert await tasks[0] == 102
        await settle()
        assert uploads[2].n_read == 2
        uploads[1].hang_up()
        with pytest.raises(ClientDisconnect):
            await tasks[1]
        uploads[2].send(b"", more=False)
        assert await tasks[2] == 102
        assert not bodies._large.locked()

    run(main)


def test_a_large_body_that_takes_too_long_gives_its_place_back():
    async def main():
        bodies = Bodies(large_bytes=100, n_large=1, large_limit_s=0.01)
        slow = Upload(LARGE)
        with pytest.raises(BodyTooSlow):
            await bodies.decoded(slow.request, len)
        upload = Upload()
        upload.send(LARGE, more=False)
        assert await bodies.decoded(upload.request, len) == len(LARGE)

    run(main)
