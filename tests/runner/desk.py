"""The prompt thread and the text thread without threads, for tests that look at what they send."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from localrun.core import ChatPrompt, Done, Message, RawPrompt, SamplingParams, TextDelta
from localrun.ipc.messages import Cancel, Outbox, Share, Submit
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import Remove, StepOutput, TokenOut
from localrun.runner.fake_script import FakeVocab, Script
from localrun.runner.prompt.prepare import PromptThread
from localrun.runner.text import TextMessage, TextThread


class Desk:
    """Both threads without threads: messages in, frames and engine messages out."""

    def __init__(self, **script: Any) -> None:
        self.vocab = FakeVocab(Script(**script))
        self.engine: SimpleQueue[Sequence | Remove | Share] = SimpleQueue()
        self.prompt_inbox: SimpleQueue[Submit | Cancel] = SimpleQueue()
        self.told: list[Any] = []
        self.frames: list[Outbox] = []
        self.prompts = PromptThread(self.vocab, self.prompt_inbox, self.told.append)
        self.inbox: SimpleQueue[TextMessage] = SimpleQueue()  # the text thread's
        self.send: Callable[[Outbox], None] = self.frames.append
        self.text = TextThread(
            self.vocab, self.inbox, self.engine.put, lambda frame: self.send(frame)
        )

    def prepare(self, *messages: Submit | Cancel) -> list[Any]:
        """What the prompt thread says about messages that arrived together."""
        self.told.clear()
        for message in messages:
            self.prompt_inbox.put(message)
        for _ in messages:
            self.prompts.turn()
        return list(self.told)

    def turn(self, *messages: Any) -> list[Any]:
        """The items sent in answer to what the text thread found together in its inbox."""
        return self._sent(lambda: self.text.turn(messages))

    def read(self) -> list[Any]:
        """The items sent when the text thread finds what is in its inbox."""
        return self._sent(self.text.read)

    def _sent(self, act: Callable[[], None]) -> list[Any]:
        self.frames.clear()
        act()
        return [item for frame in self.frames for item in frame.items]

    def ask(self, submit: Submit) -> list[Any]:
        """The items that a request leads to before the engine has done anything."""
        return self.turn(*self.prepare(submit))

    def submit(self, number: int, text: str = "hi", *, raw: bool = True, **wishes: Any) -> Submit:
        prompt = RawPrompt(text) if raw else ChatPrompt((Message("user", text),))
        sampling = SamplingParams(**wishes.pop("sampling", {}))
        return Submit(number, prompt, sampling, n_ctx=wishes.pop("n_ctx", 100), **wishes)

    def accept(self, number: int, **wishes: Any) -> Sequence:
        self.ask(self.submit(number, **wishes))
        return self.queued()

    def queued(self) -> Sequence:
        """The sequence that the engine finds next."""
        sequence = self.engine.get_nowait()
        assert isinstance(sequence, Sequence)
        return sequence


def step(*tokens: TokenOut, admitted: tuple[Sequence, ...] = (), **counts: int) -> StepOutput:
    counts = {"n_running": 1, **counts}
    return StepOutput(admitted, tokens, (), **counts)


def texts(items: list[Any]) -> list[str]:
    return [i.event.text for i in items if isinstance(getattr(i, "event", None), TextDelta)]


def dones(items: list[Any]) -> list[Done]:
    return [i.event for i in items if isinstance(getattr(i, "event", None), Done)]
