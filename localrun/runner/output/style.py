"""What an answer's text is made of, and the reader that tells it apart. Values and one choice."""

from dataclasses import dataclass

from localrun.core import Tool
from localrun.runner.output.calls import CallReader
from localrun.runner.output.formats import GENERIC, CallFormat
from localrun.runner.output.harmony import MARKERS, HarmonyReader
from localrun.runner.output.offered import Offered
from localrun.runner.output.parts import Plain, Reader
from localrun.runner.output.thinking import ThinkingReader
from localrun.runner.structured.constraint import ThinkTags


@dataclass(frozen=True, slots=True)
class Markup:
    """What a template teaches its model: tags around thinking, and how calls are written.

    `knows_tools` when it has a place for their definitions or for calls. With `is_harmony`
    messages have heads instead, and `tags` say only where an answer may begin to be constrained.
    """

    tags: ThinkTags | None = None
    form: CallFormat = GENERIC
    knows_tools: bool = False
    is_harmony: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """How the answer to one request is to be read.

    `is_thinking` when the prompt has opened the thinking. Nothing is a call without `tools`;
    `is_forced` when the answer has to be calls of them.
    """

    markup: Markup = Markup()
    tools: tuple[Tool, ...] = ()
    is_thinking: bool = False
    is_forced: bool = False

    @property
    def is_plain(self) -> bool:
        """True when all of the answer is text."""
        return not self.tools and self.markup.tags is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that have to be visible, also where the vocabulary has control tokens for them."""
        markup = self.markup
        if markup.is_harmony:
            return MARKERS
        tags = (markup.tags.opening, markup.tags.closing) if markup.tags else ()
        return (*tags, *markup.form.markers) if self.tools else tags

    def shows(self, control_text: str) -> bool:
        """Whether a control token is one that the reader has to see."""
        return bool(control_text) and any(control_text in marker for marker in self.markers)


def reader_of(style: Style) -> Reader:
    """The reader for answers of this style."""
    markup, offered = style.markup, Offered(style.tools)
    if markup.is_harmony:
        return HarmonyReader(offered, is_forced=style.is_forced)
    rest: Reader = Plain()
    if style.tools:
        rest = CallReader(markup.form, offered, is_forced=style.is_forced)
    if markup.tags is None:
        return rest
    return ThinkingReader(markup.tags, rest, is_thinking=style.is_thinking)
