"""The chat prompt of `run` as a machine without I/O: a line in, actions out.

Owns the conversation, the settings made with `/set`, and the state of multi-line input. Knows
neither terminal nor network: `cli.repl` reads lines, carries the actions out, and reports back with
`answered`. A command is recognised by its whole first word.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from cli.formats import TAKES, described
from cli.parameters import typed
from cli.thinking import think_value
from localrun.errors import BadRequest
from localrun.options import OPTIONS

SET_FORMAT = "/set format"

_FENCE = '"""'

Topic = Literal["info", "license", "modelfile", "parameters", "system", "template"]
_TOPICS: tuple[Topic, ...] = (
    "info",
    "license",
    "modelfile",
    "parameters",
    "system",
    "template",
)

_SETTINGS = "system, parameter, think, nothink, format, noformat, verbose or quiet"

HELP = f"""\
/set system TEXT           replace the system message
/set parameter NAME VALUE  change an option, such as `/set parameter temperature 0.2`
/set think [LEVEL]         let the model think first: low, medium, high, max or its own way
/set nothink               let it answer at once
/set format json           answers are JSON; /set noformat ends that
/set format SCHEMA         they match a JSON schema, as text or the name of a file with one
/set verbose, /set quiet   show or hide timings after an answer
/show TOPIC                show {", ".join(_TOPICS)}
/clear                     forget the conversation
/? or /help                this list
/bye or /exit              leave; Ctrl-D does the same

{_FENCE} opens a text of several lines and {_FENCE} at the end of a line closes it.
Ctrl-C stops an answer.
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the conversation; `body` holds `messages` and what was set for the session."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the person something; not part of the conversation."""

    text: str


@dataclass(frozen=True, slots=True)
class Show:
    """Show a part of the model's description; `options`, `system`: what this session has set."""

    topic: Topic
    options: dict[str, Any]
    system: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the session."""


@dataclass(frozen=True, slots=True)
class Think:
    """Ask for so much thinking from now on, if the model can: then `set_think` does it."""

    value: bool | str


@dataclass(frozen=True, slots=True)
class Format:
    """Read a schema, from a file when `text` is the name of one: then `set_format` takes it."""

    text: str


Action = Ask | Say | Show | Leave | Think | Format


@dataclass
class Session:
    """One conversation. Mutable; for one thread. `format` and `think` are wire values, or None."""

    turns: list[dict[str, str]] = field(default_factory=list)
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    verbose: bool = False
    format: Any = None
    think: bool | str | None = None
    _open: list[str] | None = None
    _opened_by: Literal["message", "system"] = "message"

    @property
    def prompt(self) -> str:
        """What the terminal shows before the next line; dots while a text is still open."""
        return ">>> " if self._open is None else "... "

    def feed(self, line: str) -> list[Action]:
        """What to do after a line, which may hold newlines when it was pasted."""
        if self._open is not None:
            return self._continue(line)
        stripped = line.strip()
        if stripped.startswith(_FENCE):
            return self._begin("message", stripped[len(_FENCE) :])
        if stripped.startswith("/"):
            return self._command(stripped)
        return self._ask(line) if stripped else []

    def discard(self) -> None:
        """Drops an unfinished text of several lines (Ctrl-C at the prompt)."""
        self._open = None

    def answered(self, text: str, thinking: str = "") -> None:
        """The answer to the last `Ask`, possibly cut short; an empty one takes its question back.

        Turns have to alternate: many chat templates refuse two questions in a row.
        """
        if text:
            turn = {"role": "assistant", "content": text}
            self.turns.append(turn | {"thinking": thinking} if thinking else turn)
        else:
            self.turns.pop()

    def _ask(self, text: str) -> list[Action]:
        self.turns.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"messages": system + self.turns}
        if self.options:
            body["options"] = dict(self.options)
        body |= {} if self.format is None else {"format": self.format}
        body |= {} if self.think is None else {"think": self.think}
        return [Ask(body)]

    def _begin(self, purpose: Literal["message", "system"], rest: str) -> list[Action]:
        self._open, self._opened_by = [], purpose
        return self._continue(rest) if rest else []

    def _continue(self, line: str) -> list[Action]:
        assert self._open is not None
        ended = line.rstrip().endswith(_FENCE)
        self._open.append(line.rstrip()[: -len(_FENCE)] if ended else line)
        if not ended:
            return []
        text = "\n".join(self._open)
        self._open = None
        if self._opened_by == "system":
            return self._set_system(text)
        return self._ask(text) if text.strip() else []

    def _command(self, line: str) -> list[Action]:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/bye" | "/exit":
                return [Leave()]
            case "/?" | "/help":
                return [Say(HELP.rstrip("\n"))]
            case "/clear":
                self.turns.clear()
                return [Say("the conversation is forgotten")]
            case "/set":
                return self._set(rest)
            case "/show":
                if topic := next((topic for topic in _TOPICS if topic == (rest or "info")), None):
                    return [Show(topic, dict(self.options), self.system)]
                return [Say(f"`/show {rest}` is unknown; there are {', '.join(_TOPICS)}")]
        return [Say(f"`{word}` is not a command; `/?` lists them")]

    def _set(self, rest: str) -> list[Action]:
        what, _, value = rest.partition(" ")
        value = value.strip()
        match what:
            case "system" if value.startswith(_FENCE):
                return self._begin("system", value[len(_FENCE) :])
            case "system":
                return self._set_system(value)
            case "parameter":
                return [self._set_parameter(value.split())]
            case "verbose" | "quiet":
                self.verbose = what == "verbose"
                return [Say("timings are " + ("shown" if self.verbose else "hidden"))]
            case "think" | "nothink":
                return [self._wanted_think(value or "true" if what == "think" else "false")]
            case "format":
                return [self._wanted_format(value)]
            case "noformat":
                return [self.set_format(None)]
        return [Say(f"`/set` takes {_SETTINGS}; `/?` explains them")]

    def set_think(self, value: bool | str) -> Say:
        """How much the model thinks from now on; it can, if it is asked to."""
        self.think = value
        how = f" ({value})" if isinstance(value, str) else ""
        does = f"thinks before it answers{how}" if value else "answers at once"
        return Say(f"the model {does}")

    def set_format(self, value: Any) -> Say:
        """The format of answers from now on, a wire value."""
        self.format = value
        return Say(f"answers are {described(value)}")

    def _wanted_think(self, word: str) -> Say | Think:
        try:
            value = think_value(word)
        except ValueError as error:
            return Say(f"`/set think` takes a level: {error}")
        # Every model can leave it.
        return Think(value) if value else self.set_think(value)

    def _wanted_format(self, text: str) -> Say | Format:
        if not text:
            return Say(f"answers are {described(self.format)}; `{SET_FORMAT}` {TAKES}")
        return self.set_format(text) if text == "json" else Format(text)

    def _set_system(self, text: str) -> list[Action]:
        self.system = text
        return [Say("system message set" if text else "the model's own system message is back")]

    def _set_parameter(self, words: list[str]) -> Say:
        if len(words) < 2:
            return Say(f"`/set parameter` takes a name and a value; names: {', '.join(OPTIONS)}")
        name, *values = words
        try:
            self.options[name] = typed(name, values)
        except BadRequest as error:
            return Say(str(error))
        return Say(f"{name} is {' '.join(values)}")
