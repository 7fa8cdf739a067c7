"""The terminal side of the chat prompt: reads lines, carries out what `cli.session` decides.

Owns line editing and its history file (the standard library's readline, where there is one) and
the meaning of Ctrl-C: during an answer it stops that answer, at the prompt it drops the line.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cli.autostart import state_folder
from cli.client import Client
from cli.context import Context, is_text
from cli.errors import CliError, ConnectionLost, DaemonUnreachable, Failed
from cli.formats import format_value, schema_in
from cli.render import dropped, stats
from cli.replies import ChatLine, Shown
from cli.session import SET_FORMAT, Action, Ask, Format, Leave, Say, Session, Show, Think
from cli.thinking import ThinkingView

T = TypeVar("T")

_HISTORY_LINES = 1000


@dataclass
class Repl:
    """One interactive run of a model; `request` goes into every chat request as it is."""

    context: Context
    client: Client
    model: str
    request: dict[str, Any]
    session: Session = field(default_factory=Session)
    read_line: Callable[[str], str] = input
    hides_thinking: bool = False

    def loop(self) -> int:
        """Runs until the person leaves; the exit code."""
        self.context.say("Send a message, or /? for help.")
        with _History(enabled=not self.context.settings.no_history):
            while True:
                try:
                    line = self._line()
                except KeyboardInterrupt:
                    self.session.discard()
                    self.context.say("\nCtrl-D or /bye leaves.")
                    continue
                except EOFError:
                    self.context.say("")
                    return 0
                for action in self.session.feed(line):
                    if isinstance(action, Leave):
                        return 0
                    self._carry_out(action)

    def _line(self) -> str:
        """The next line that is text."""
        while True:
            with suppress(UnicodeDecodeError):
                line = self.read_line(self.session.prompt)
                if is_text(line):
                    return line
            self.context.note("Error: the line is not UTF-8 text; nothing was sent")

    def _carry_out(self, action: Action) -> None:
        try:
            match action:
                case Ask(body):
                    self._ask(body)
                case Say(text):
                    self.context.say(text)
                case Show():
                    self._show(action)
                case Think(value):
                    self._think(value)
                case Format(text):
                    value = format_value(text, SET_FORMAT)
                    value = schema_in(value, SET_FORMAT) if isinstance(value, Path) else value
                    self.context.say(self.session.set_format(value).text)
        except CliError as error:
            self.context.note(f"Error: {error}")

    def _ask(self, body: dict[str, Any]) -> None:
        answer: list[str] = []
        thoughts: list[str] = []
        view = ThinkingView(self.context, is_hidden=self.hides_thinking)
        last: ChatLine | None = None
        request = {"model": self.model, **self.request, **body}
        try:
            with ExitStack() as stack:
                lines = self._alive(
                    lambda: stack.enter_context(self.client.stream("/api/chat", request, ChatLine))
                )
                for last in lines:
                    thoughts.append(last.thinking)
                    view.show(last.thinking)
                    if last.text:
                        view.close()
                        answer.append(last.text)
                        self.context.emit(last.text)
            if last is None or not last.done:
                raise Failed("the answer ended before it was complete")
        except KeyboardInterrupt:
            if not answer:
                self.context.say("")
        finally:
            view.close()
            text = "".join(answer)
            self.session.answered(text, "".join(thoughts))
            if text:
                self.context.say("" if text.endswith("\n") else "\n")
        if last is not None and last.done:
            self._note_figures(last)

    def _note_figures(self, last: ChatLine) -> None:
        if warning := dropped(last):
            self.context.note(warning)
        if self.session.verbose:
            self.context.note(stats(last))

    def _alive(self, request: Callable[[], T]) -> T:
        """Makes the request again when the daemon had gone and could be started again."""
        try:
            return request()
        except DaemonUnreachable as error:
            if error.reason:
                raise
        except ConnectionLost:  # it went away while the connection was kept for this request
            pass
        self.client = self.context.connect()
        return request()

    def _think(self, value: bool | str) -> None:
        if "thinking" in self._described().capabilities:
            self.context.say(self.session.set_think(value).text)
        else:
            self.context.say(f'"{self.model}" does not support thinking; nothing is changed')

    def _described(self) -> Shown:
        return self._alive(lambda: self.client.post("/api/show", {"model": self.model}, Shown))

    def _show(self, action: Show) -> None:
        from cli.commands.show import overview, single

        topic, options = action.topic, action.options
        shown = self._described()
        shown.system = action.system or shown.system
        text = overview(shown, verbose=False) if topic == "info" else single(shown, topic)
        if topic == "parameters" and options:
            values = {name: msgspec.json.encode(value).decode() for name, value in options.items()}
            text += "set here:\n" + "".join(f"{name} {value}\n" for name, value in values.items())
        self.context.say(text.rstrip("\n") or f"the model has no {topic}")


class _History:
    """Line editing with a history that outlives the process; does nothing without readline."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._path = ""

    def __enter__(self) -> None:
        try:
            import readline
        except ImportError:
            return
        if "libedit" not in (readline.__doc__ or ""):
            # A pasted text of several lines then is one line here, instead of many questions.
            readline.parse_and_bind("set enable-bracketed-paste on")
        if not self._enabled:
            return
        path = state_folder() / "history"
        try:
            path.touch(mode=0o600)
            readline.read_history_file(path)
        except OSError:
            return
        readline.set_history_length(_HISTORY_LINES)
        self._path = str(path)

    def __exit__(self, *_: object) -> None:
        if not self._path:
            return
        import readline

        try:
            readline.write_history_file(self._path)
        except OSError:
            return


def load(context: Context, client: Client, model: str, keep_alive: Any) -> None:
    """Loads the model before the first prompt, so that a wrong name shows at once.

    Raises: ApiError, with status 404 for a model that is not there.
    """
    from cli.commands.run import load_model

    waits = context.stderr.isatty()
    if waits:
        context.stderr.write(f"loading {model} …")
        context.stderr.flush()
    try:
        load_model(client, model, keep_alive)
    finally:
        if waits:
            context.stderr.write("\r\x1b[K")
            context.stderr.flush()
