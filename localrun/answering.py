"""One call's way through residency and a runner, and what becomes of it when the runner dies."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec

from localrun.core import Call, Done, Event
from localrun.errors import BadRequest, ModelStopped, RunnerLost, Unsupported
from localrun.ipc.messages import Submit
from localrun.preparing import Work
from localrun.residency.entry import Lease
from localrun.residency.owner import Residency
from localrun.supervisor.choices import Choices, sampling_of
from localrun.supervisor.client import RunnerClient
from localrun.supervisor.stream import RequestStream


@dataclass(frozen=True, slots=True)
class Ongoing:
    """What all calls of a daemon share: the models, the answers under way, and one lock.

    A request whose runner died in its prefill may be what killed it: such requests, `suspects`,
    are tried again one at a time, so that a second death names the culprit.
    """

    residency: Residency[RunnerClient]
    answers: set[Choices] = field(default_factory=set)
    suspects: asyncio.Lock = field(default_factory=asyncio.Lock)


class CallAnswer:
    """One call's way through residency and a runner; see `Answer`.

    All its choices share one lease, and what becomes of them when their runner dies: as long as
    nothing was sent they are tried once more, all together; at once if they only waited, alone if
    one of them was in prefill.
    """

    def __init__(self, ongoing: Ongoing, call: Call, work: Work, began_ns: int) -> None:
        self._ongoing = ongoing
        self._call = call
        self._work = work
        self._began_ns = began_ns
        self._load_ns = 0
        self._lease: Lease[RunnerClient] | None = None
        self._choices: Choices | None = None
        self._is_second = self._is_alone = self._has_sent = False

    async def begin(self) -> None:
        """Returns when a runner has accepted the first choices, one for each of its slots."""
        try:
            await self._attempt()
        except RunnerLost as error:
            await self._try_again(error)

    @property
    def n_prompt(self) -> int:
        """See `Answer.n_prompt`."""
        return self._choices.n_prompt if self._choices is not None else 0

    @property
    def loosened(self) -> tuple[str, ...]:
        """See `Answer.loosened`."""
        return self._choices.loosened if self._choices is not None else ()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        assert self._choices is not None
        try:
            with in_words_of(self._call):
                event = await anext(self._choices)
        except RunnerLost as error:
            await self._try_again(error)
            return await self.__anext__()
        self._has_sent = True
        if self._is_alone and self._choices.phases <= {"decode"}:
            self._let_others_try()
        if isinstance(event, Done):
            return _timed(event, self._began_ns, self._load_ns)
        return event

    async def aclose(self) -> None:
        """Ends the request, which is cancelled if it still runs. Idempotent."""
        self._give_back()
        self._let_others_try()

    async def _attempt(self) -> None:
        work = self._work
        self._lease = await self._ongoing.residency.lease(
            work.spec, work.model, self._call.keep_alive_s
        )
        self._load_ns = time.perf_counter_ns() - self._began_ns
        n_slots = self._lease.runner.info.n_slots
        self._choices = Choices(self._submit, self._call.n_choices, n_at_once=n_slots)
        self._ongoing.answers.add(self._choices)
        with in_words_of(self._call):
            await self._choices.begin()

    def _submit(self, index: int) -> RequestStream:
        assert self._lease is not None
        work, runner = self._work, self._lease.runner
        n_prompt, number = divmod(index, self._call.n_each)
        return runner.submit(
            Submit(
                0,
                work.prompts[n_prompt],
                sampling_of(work.sampling, number),
                work.spec.n_ctx,
                work.overflow,
                work.template,
                self._call.return_context,
                self._call.client,
                self._call.scope,
                self._call.schema,
            )
        )

    async def _try_again(self, error: RunnerLost) -> None:
        """Raises `error` when the request must not be tried again."""
        if self._is_second or self._has_sent or error.phase == "decode":
            raise error
        assert self._choices is not None
        have_all_waited = self._choices.phases == {"waiting"}
        self._is_second = True
        self._give_back()
        if not have_all_waited:
            await self._ongoing.suspects.acquire()
            self._is_alone = True
        await self._attempt()

    def _give_back(self) -> None:
        if self._choices is not None:
            self._ongoing.answers.discard(self._choices)
            self._choices.close()
        if self._lease is not None:
            self._lease.close()

    def _let_others_try(self) -> None:
        if self._is_alone:
            self._is_alone = False
            self._ongoing.suspects.release()


class WithoutText:
    """The `Answer` to a call that only loads a model, or lets one go."""

    n_prompt = 0
    loosened: tuple[str, ...] = ()

    def __init__(self, done: Done) -> None:
        self._events: Iterator[Event] = iter((done,))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """There is nothing to end."""


def _client_path(path: str, call: Call) -> str:
    """A path in the words of the call's dialect: a runner calls all fields as Ollama does."""
    field, dot, rest = path.partition(".")
    return call.places.get(field, field) + dot + rest


def _timed(done: Done, began_ns: int, load_ns: int) -> Done:
    total_ns = time.perf_counter_ns() - began_ns
    usage = msgspec.structs.replace(done.usage, load_ns=load_ns, total_ns=total_ns)
    return msgspec.structs.replace(done, usage=usage)


@contextlib.contextmanager
def in_words_of(call: Call) -> Iterator[None]:
    """A runner knows neither how its model is called nor how a dialect calls the fields."""
    try:
        yield
    except Unsupported as error:
        path = _client_path(error.path, call)
        raise Unsupported(call.model, error.capability, path) from None
    except BadRequest as error:
        raise BadRequest(_client_path(error.path, call), error.problem) from None
    except ModelStopped as error:
        # Several names may lead to the weights that were stopped.
        raise ModelStopped(call.model, error.grace_s) from None
