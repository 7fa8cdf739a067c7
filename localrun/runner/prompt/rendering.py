"""Messages → token ids, by whatever template counts for a request.

Owns the order of attempts: the template gets the conversation as it is, and when it refuses that,
in a form that says the same (`histories`). Only the template's text makes control tokens
(`spelling`).
"""

import logging
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from localrun.core import FillPrompt, Message
from localrun.errors import TemplateFailed
from localrun.runner.limits import bounded_memory
from localrun.runner.model import Vocab
from localrun.runner.output.style import Markup
from localrun.runner.prompt.definitions import NOTHING_ASKED, Asked, with_definitions
from localrun.runner.prompt.histories import forms, holds_all, without_prefill
from localrun.runner.prompt.markup import go_markup, jinja_markup
from localrun.runner.prompt.spelling import Piece, Spellings
from localrun.runner.prompt.templates import JinjaTemplate, render_plain
from localrun.runner.structured.constraint import ThinkTags

_log = logging.getLogger(__name__)

# What becomes of these is known, and no loss.
_HAVE_OTHER_FORMS = frozenset({"system", "developer", "user", "assistant", "tool"})

# Of random letters and of spaces, which are the slowest texts, for the tokenizers of BPE.
_SLICE_CHARS = 1 << 20
# Where its end is looked for.
_LOOK_BACK = 1 << 10
# The beginning of a word with its space, as tokenizers take them.
_GAP = re.compile(r"(?<=\w) (?=\w)")

T = TypeVar("T")

Render = Callable[[Sequence[Message]], str]
RenderAsked = Callable[[Sequence[Message], Asked], str]
# Stops where something else may be done, and returns how many tokens there are.
Counting = Generator[None, None, int]
Fill = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as tokens; `is_thinking` when the answer begins inside of the model's thinking."""

    tokens: list[int]
    is_thinking: bool = False


class Renderer:
    """Renders and tokenizes for one model. For one thread."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    @cached_property
    def spellings(self) -> Spellings:
        """Those of the model's control tokens; made when first needed, since that takes a while."""
        return Spellings(self._vocab.control_texts())

    def markup(self, go_source: str | None) -> Markup:
        """What the template that counts teaches the model; nothing where there is none."""
        if go_source is not None:
            return go_markup(go_source)
        own = self._vocab.chat_template
        return Markup() if own is None else jinja_markup(own)

    def better(self, go_source: str | None, *, tools: bool, thinking: bool) -> str | None:
        """The Go template that counts for a request of these; None for the model's own template.

        That one counts where it knows what is asked for and the Go template does not. Source:
        Ollama prefers the file's template where that can do more; here only when it is needed.
        """
        if go_source is None or self._vocab.chat_template is None:
            return go_source
        own, other = self.markup(None), self.markup(go_source)
        lacks_tools = tools and own.knows_tools and not other.knows_tools
        lacks_thinking = thinking and own.tags is not None and other.tags is None
        return None if lacks_tools or lacks_thinking else go_source

    def template(self, go_source: str | None) -> RenderAsked:
        """How to render: by that Go template, else the model's own one. Raises TemplateFailed."""
        if go_source is not None:
            # Few models have one, and the engine for them takes 3 MB of every runner.
            from localrun.runner.prompt.go_template import go_template

            return _bounded(lambda: go_template(go_source).render)
        if self._vocab.chat_template is None:
            return render_plain
        # Compiling evaluates constants.
        return _bounded(lambda: self._own_template.render)

    @cached_property
    def _own_template(self) -> JinjaTemplate:
        assert self._vocab.chat_template is not None
        return JinjaTemplate(
            self._vocab.chat_template,
            bos_text=self._vocab.bos_text,
            eos_text=self._vocab.eos_text,
        )

    def tokens(
        self,
        messages: Sequence[Message],
        render: RenderAsked,
        asked: Asked = NOTHING_ASKED,
        *,
        is_start: bool = True,
        tags: ThinkTags | None = None,
    ) -> Rendered:
        """The prompt for the answer to `messages`; texts are marked (`Spellings.marked`).

        An assistant's turn at the end is gone on with. `tags` are those of the model's thinking.
        Raises TemplateFailed, with what the template says of the conversation as it is.
        """
        text, is_thinking = self._text(messages, render, asked, tags)
        tokens = self._tokens_of(self.spellings.pieces(text), is_start=is_start)
        return Rendered(tokens, is_thinking)

    def counted(
        self,
        messages: Sequence[Message],
        render: RenderAsked,
        asked: Asked,
        *,
        tags: ThinkTags | None = None,
    ) -> Counting:
        """How many tokens that prompt has, whatever its length. Raises TemplateFailed."""
        text, _ = self._text(messages, render, asked, tags)
        n_tokens = n_chars = 0
        for piece in self.spellings.pieces(text):
            for part in slices(piece.text):
                if n_chars + len(part) > _SLICE_CHARS:
                    yield
                    n_chars = 0
                tokens = self._vocab.tokenize(
                    part, is_start=n_tokens == 0, parses_control=piece.has_control
                )
                n_tokens += len(tokens)
                n_chars += len(part)
        return n_tokens

    def _text(
        self,
        messages: Sequence[Message],
        render: RenderAsked,
        asked: Asked,
        tags: ThinkTags | None,
    ) -> tuple[str, bool]:
        """(the prompt, whether the answer begins inside of the model's thinking)."""
        turns, prefill = without_prefill(messages)
        rendered = _bounded(lambda: _with_tools(turns, render, asked))
        is_thinking = tags is not None and rendered.rstrip().endswith(tags.opening)
        if prefill is not None:
            rendered += _answer_start(prefill, tags, is_thinking=is_thinking)
            is_thinking = is_thinking and not prefill.content
        return rendered, is_thinking

    def filled(self, prompt: FillPrompt, render: Fill) -> list[int]:
        """The prompt for what is missing between two texts. Raises TemplateFailed."""
        prefix, suffix = map(self.spellings.mark, (prompt.prefix, prompt.suffix))
        rendered = _bounded(lambda: render(prefix, suffix))
        return self._tokens_of(self.spellings.pieces(rendered), is_start=True)

    def _tokens_of(self, pieces: Sequence[Piece], *, is_start: bool) -> list[int]:
        tokens: list[int] = []
        for number, piece in enumerate(pieces):
            tokens += self._vocab.tokenize(
                piece.text,
                is_start=is_start and number == 0,
                parses_control=piece.has_control,
            )
        return tokens


def slices(text: str) -> Iterator[str]:
    """The text in parts that take a tokenizer about a second and 120 MB at most.

    They end where words do, if there are any, so that what they come to is off by a token at most
    for each.
    """
    while len(text) > _SLICE_CHARS:
        gaps = [gap.start() for gap in _GAP.finditer(text, _SLICE_CHARS - _LOOK_BACK, _SLICE_CHARS)]
        end = gaps[-1] if gaps else _SLICE_CHARS
        yield text[:end]
        text = text[end:]
    yield text


def _with_tools(turns: Sequence[Message], render: RenderAsked, asked: Asked) -> str:
    """The text by a template that may have no place for tools: then they are a system text."""
    tools, plain = asked.tools, Asked(think=asked.think)
    try:
        text = render_any(turns, lambda form: render(form, asked))
    except TemplateFailed:
        if not tools:
            raise
        text = ""
    if all(tool.name in text for tool in tools):
        return text
    return render_any(with_definitions(turns, tools), lambda form: render(form, plain))


def _answer_start(prefill: Message, tags: ThinkTags | None, *, is_thinking: bool) -> str:
    """How the answer begins behind a prompt that has or has not opened the thinking."""
    if tags is None or not (is_thinking or prefill.thinking):
        return prefill.content
    opening = "" if is_thinking else f"{tags.opening}\n"
    closing = f"\n{tags.closing}\n\n" if prefill.content or not is_thinking else ""
    return f"{opening}{prefill.thinking}{closing}{prefill.content}"


def fill_template(go_source: str | None) -> Fill | None:
    """How the Go template renders a text before and one behind a gap; None when it cannot.

    Raises TemplateFailed.
    """
    if go_source is None or ".Suffix" not in go_source:
        return None
    from localrun.runner.prompt.go_template import go_template

    return _bounded(lambda: go_template(go_source).render_fill)


def _bounded(work: Callable[[], T]) -> T:
    """What comes of `work` on a template, compiling included.

    Tokenizing has to stay outside, since llama.cpp ends without memory.
    """
    try:
        with bounded_memory():
            return work()
    except MemoryError:
        raise TemplateFailed("it takes too much memory") from None


def _note_changed_roles(messages: Sequence[Message], form: Sequence[Message]) -> None:
    """Says so when turns of a role that the template does not know have become others."""
    changed = {one.role for one in messages} - {one.role for one in form} - _HAVE_OTHER_FORMS
    for role in sorted(changed):
        _log.warning("the model's template does not know the role %.40a; it got a user's", role)


def render_any(messages: Sequence[Message], render: Render) -> str:
    """The text of the first form of the conversation that the template takes without a loss.

    Where every form loses something, that is what the template is meant to do: the first it takes
    counts. Raises TemplateFailed, with what it says of the conversation as it is.
    """
    refusal: TemplateFailed | None = None
    accepted: str | None = None
    for form in forms(messages):
        try:
            rendered = render(form)
        except TemplateFailed as error:
            refusal = refusal or error
            continue
        if holds_all(rendered, messages):
            _note_changed_roles(messages, form)
            return rendered
        accepted = rendered if accepted is None else accepted
    if accepted is not None:
        return accepted
    assert refusal is not None
    raise refusal
