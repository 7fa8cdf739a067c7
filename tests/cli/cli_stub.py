"""A scripted daemon for the tests of the command line, and a context with streams of its own.

The stub answers each (method, path) with what a test queued for it, repeats the last answer when
the queue is empty, and records every request. A reply may hold a gate: what follows in a stream is
sent only once the test has opened it.
"""

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cli.context import Context
from cli.main import run_with


@dataclass
class Request:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """`lines` makes a chunked NDJSON stream, or server-sent events with `is_sse`.

    `is_cut` drops the connection instead of ending the stream.
    """

    status: int = 200
    body: Any = None
    lines: Sequence[Any] | None = None
    gate: threading.Event | None = None
    is_cut: bool = False
    is_sse: bool = False


@dataclass
class Stub:
    """A server on a free port of loopback."""

    replies: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.on("GET", "/api/version", Reply(body={"version": "0.30.0", "localrun": "0.1.0"}))
        self.on("GET", "/health", Reply(body={"status": "ok"}))
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": self})
        )
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]
        # The default interval of half a second is how long a shutdown would take.
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def on(self, method: str, path: str, *replies: Reply) -> None:
        self.replies[method, path] = list(replies)

    def next_reply(self, request: Request) -> Reply:
        queue = self.replies.get((request.method, request.path))
        if not queue:
            return Reply(404, {"error": f"no script for {request.method} {request.path}"})
        return queue.pop(0) if len(queue) > 1 else queue[0]

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        request = Request(self.command, self.path, body, dict(self.headers))
        self.stub.requests.append(request)
        try:
            self._send(self.stub.next_reply(request))
        except OSError:
            self.stub.gone.set()
            self.close_connection = True

    do_GET = do_POST = do_HEAD = do_DELETE = _answer

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        if reply.lines is None:
            text = b"" if reply.body is None else json.dumps(reply.body).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else text)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, line in enumerate(reply.lines):
            if number == 1 and reply.gate is not None:
                reply.gate.wait(30)
                self._watch_client()
            data = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
            if reply.is_sse:
                data = b"data: " + data + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if reply.is_cut:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def _watch_client(self) -> None:
        # An open connection has nothing to read here; a closed one reads as its end.
        self.connection.settimeout(0.01)
        try:
            if self.connection.recv(1) == b"":
                raise ConnectionResetError
        except TimeoutError:
            return
        finally:
            self.connection.settimeout(None)

    def log_message(self, *_: object) -> None:
        return


class Stream(io.StringIO):
    """A text stream that may claim to be a terminal."""

    def __init__(self, text: str = "", *, is_terminal: bool = False) -> None:
        super().__init__(text, newline="")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass
class Run:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs commands in this process against the stub."""

    environ: dict[str, str]

    def __call__(
        self, *argv: str, stdin: str | None = None, is_terminal: bool = False, **environ: str
    ) -> Run:
        """`stdin` None is a terminal; `is_terminal` is about the two outputs."""
        context = Context(
            {**self.environ, **environ},
            Stream(stdin or "", is_terminal=stdin is None),
            Stream(is_terminal=is_terminal),
            Stream(is_terminal=is_terminal),
        )
        code = run_with(list(argv), context)
        assert isinstance(context.stdout, Stream)
        assert isinstance(context.stderr, Stream)
        return Run(code, context.stdout.getvalue(), context.stderr.getvalue())


def pieces(*texts: str, key: Callable[[str], dict[str, Any]], **final: Any) -> Iterator[Any]:
    """The lines of a streamed answer."""
    for text in texts:
        yield {"model": "m", **key(text), "done": False}
    yield {"model": "m", **key(""), "done": True, "done_reason": "stop", **final}


def generated(*texts: str, **final: Any) -> list[Any]:
    return list(pieces(*texts, key=lambda text: {"response": text}, **final))


def chatted(*texts: str, **final: Any) -> list[Any]:
    def message(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    return list(pieces(*texts, key=message, **final))


def thought(*pieces: str, as_chat: bool = False) -> list[Any]:
    """Lines of what a model thinks, in front of those of its answer."""
    if as_chat:
        message = {"role": "assistant", "content": ""}
        return [{"message": message | {"thinking": piece}, "done": False} for piece in pieces]
    return [{"response": "", "thinking": piece, "done": False} for piece in pieces]


def completed(
    *texts: str, n_prompt: int = 10, n_tokens: int | None = None, n_cached: int = 0
) -> Reply:
    """A streamed chat completion of OpenAI's dialect; a token a text unless `n_tokens` says."""
    usage = {
        "prompt_tokens": n_prompt,
        "completion_tokens": len(texts) if n_tokens is None else n_tokens,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }
    deltas = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    return Reply(lines=[*deltas, {"choices": [], "usage": usage}, "[DONE]"], is_sse=True)
