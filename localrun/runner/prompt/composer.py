"""A request's prompt → token ids that fit its window, and how many of it were left out.

Owns which kind of prompt goes which way: through a template, around a gap, or as it is. What stays
of one that is too long is `fit`'s arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localrun.core import (
    ChatPrompt,
    CountPrompt,
    FillPrompt,
    Message,
    RawPrompt,
    Think,
    Tool,
)
from localrun.errors import BadRequest, ContextOverflow, Unsupported
from localrun.ipc.messages import Submit
from localrun.runner.model import Matcher, Vocab
from localrun.runner.output.style import Markup, Style
from localrun.runner.prompt.definitions import Asked, as_dicts
from localrun.runner.prompt.fit import (
    Fitted,
    answer_room,
    check_size,
    cut,
    cut_around,
    cut_last_turn,
    fit,
    n_kept,
    shortened,
    whole,
    with_last_shortened,
)
from localrun.runner.prompt.forcing import constraint_of
from localrun.runner.prompt.histories import with_names
from localrun.runner.prompt.rendering import Counting, RenderAsked, Renderer, fill_template
from localrun.runner.structured.constraint import Constraint

PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Prepared:
    """The request's prompt as token ids, shorter than its window.

    `n_dropped` tokens of it were left out. The first `n_keep` stay should the window shift.
    `style` says how the answer is to be read, `constraint` what it has to look like; the prompt
    thread makes a matcher of that.
    """

    submit: Submit
    tokens: list[int]
    n_dropped: int = 0
    n_keep: int = 0
    style: Style = PLAIN
    constraint: Constraint | None = None
    matcher: Matcher | None = None


@dataclass(frozen=True, slots=True)
class _Way:
    """How a conversation becomes text, and the answer to it what a client reads."""

    render: RenderAsked
    asked: Asked
    style: Style


class Composer:
    """Makes the prompts of one model. For one thread."""

    def __init__(self, vocab: Vocab, on_template: Callable[[int], None]) -> None:
        """`on_template` hears the id of a request whose template is about to run."""
        self._vocab = vocab
        self._on_template = on_template
        self._renderer = Renderer(vocab)

    def compose(self, submit: Submit) -> Prepared:
        """Raises BadRequest, ContextOverflow, TemplateFailed, Unsupported."""
        style = PLAIN
        match submit.prompt:
            case RawPrompt(text=text):
                fitted = self._raw(text, submit)
            case FillPrompt() as prompt:
                fitted = self._fill(prompt, submit)
            case ChatPrompt() as prompt:
                fitted, style = self._chat(prompt, submit)
        tokens = self._startable(fitted.tokens)
        if len(tokens) >= submit.n_ctx:
            raise ContextOverflow(len(tokens), submit.n_ctx)
        return Prepared(
            submit,
            tokens,
            fitted.n_dropped,
            self._n_keep(submit, tokens),
            style,
            constraint_of(submit, style, self._control_id),
        )

    def count(self, number: int, wanted: CountPrompt) -> Counting:
        """Tokens of a chat, all of it, in any window. `number` is the request's id.

        Raises TemplateFailed, Unsupported.
        """
        prompt = wanted.prompt
        self._on_template(number)
        way = self._way(prompt, wanted.template)
        messages = self._renderer.spellings.marked(with_names(prompt.messages))
        tags = way.style.markup.tags
        n_tokens = yield from self._renderer.counted(messages, way.render, way.asked, tags=tags)
        return n_tokens or len(self._startable([]))

    def _startable(self, tokens: list[int]) -> list[int]:
        # llama.cpp needs a token to start from; an empty prompt without BOS has none.
        return tokens or self._vocab.tokenize(" ")

    def _control_id(self, text: str) -> int | None:
        """The control token that is spelled so, if there is one."""
        tokens = self._vocab.tokenize(text, is_start=False)
        if len(tokens) != 1 or self._vocab.token_bytes(tokens[0]):
            return None
        return tokens[0]

    def _n_keep(self, submit: Submit, tokens: list[int]) -> int:
        has_bos = tokens[:1] == [self._vocab.bos]
        return n_kept(submit.sampling.num_keep, len(tokens), submit.n_ctx, has_bos=has_bos)

    def _raw(self, text: str, submit: Submit) -> Fitted:
        n_ctx, sampling, n_left_out = submit.n_ctx, submit.sampling, 0
        if submit.overflow.cuts:
            text, n_left_out = shortened(text, n_ctx, sampling.num_keep)
        else:
            check_size(len(text), n_ctx)
        tokens = self._vocab.tokenize(text)
        if len(tokens) < n_ctx or not submit.overflow.cuts:
            return Fitted(tokens, n_left_out)
        n_keep = self._n_keep(submit, tokens)
        shorter = cut(tokens, n_ctx, n_keep=n_keep, num_predict=sampling.num_predict)
        return Fitted(shorter.tokens, shorter.n_dropped + n_left_out)

    def _fill(self, prompt: FillPrompt, submit: Submit) -> Fitted:
        """By a template that knows of suffixes, else by the tokens that the model has for it."""
        check_size(len(prompt.prefix) + len(prompt.suffix), submit.n_ctx)
        if (render := fill_template(submit.template)) is not None:
            self._on_template(submit.id)
            return Fitted(self._renderer.filled(prompt, render))
        if self._vocab.fill_tokens is None:
            raise Unsupported("", "insert", "suffix")
        before, middle, after = self._vocab.fill_tokens
        start = self._vocab.tokenize("")
        prefix, suffix = (
            self._vocab.tokenize(text, is_start=False, parses_control=False)
            for text in (prompt.prefix, prompt.suffix)
        )
        n_whole = len(prefix) + len(suffix)
        n_ctx = submit.n_ctx - len(start) - 3
        if submit.overflow.cuts and n_whole >= n_ctx:
            num_predict = submit.sampling.num_predict
            prefix, suffix = cut_around(prefix, suffix, n_ctx, num_predict=num_predict)
        tokens = [*start, before, *prefix, after, *suffix, middle]
        return Fitted(tokens, n_whole - len(prefix) - len(suffix))

    def _chat(self, prompt: ChatPrompt, submit: Submit) -> tuple[Fitted, Style]:
        context, n_ctx, sampling = prompt.context, submit.n_ctx, submit.sampling
        if context and not 0 <= min(context) <= max(context) < self._vocab.n_tokens:
            raise BadRequest("context", "holds token ids that the model does not have")
        check_size(sum(len(str(tool)) for tool in as_dicts(prompt.tools)), n_ctx)
        self._on_template(submit.id)
        way = self._way(prompt, submit.template)
        style, spellings = way.style, self._renderer.spellings

        def tokenize(messages: Sequence[Message]) -> list[int]:
            nonlocal style
            rendered = self._renderer.tokens(
                messages, way.render, way.asked, is_start=not context, tags=style.markup.tags
            )
            style = replace(style, is_thinking=rendered.is_thinking)
            return [*context, *rendered.tokens]

        turns = with_names(prompt.messages)
        if not submit.overflow.cuts:
            fitted = whole(spellings.marked(turns), n_ctx, tokenize)
            return fitted, style
        # Before the marks: what is left out must not be between a mark and its spelling.
        shorter, n_left_out = with_last_shortened(turns, n_ctx, sampling.num_keep)
        messages = spellings.marked(shorter)
        try:
            n_answer = answer_room(n_ctx, sampling.num_predict)
            fitted = fit(messages, n_ctx, tokenize, n_answer=n_answer)
        except ContextOverflow:
            fitted = cut_last_turn(
                messages,
                n_ctx,
                tokenize,
                keep=lambda tokens: self._n_keep(submit, tokens),
                num_predict=sampling.num_predict,
                n_context=len(context),
            )
        return Fitted(fitted.tokens, fitted.n_dropped + n_left_out), style

    def _way(self, prompt: ChatPrompt, go_source: str | None) -> _Way:
        """How a conversation is rendered. Raises TemplateFailed, Unsupported."""
        source = self._renderer.better(
            go_source, tools=bool(prompt.tools), thinking=bool(prompt.think)
        )
        markup = self._renderer.markup(source)
        think = _thinking(markup, prompt)
        tools = _offered(markup, prompt)
        marked = self._renderer.spellings.marked_tools(tools) if tools else ()
        style = Style(markup, tools, is_forced=prompt.choice.is_required)
        return _Way(self._renderer.template(source), Asked(marked, think), style)


def _offered(markup: Markup, prompt: ChatPrompt) -> tuple[Tool, ...]:
    """The tools that the model hears of. Raises Unsupported.

    One whose template knows none calls only when it has to. It reads what came of that and
    answers: whoever forces a call sends the tools with the result, too.
    """
    if not prompt.tools or markup.knows_tools or prompt.choice.is_required:
        return prompt.tools
    names = {tool.name for tool in prompt.tools}
    if any(call.name in names for message in prompt.messages for call in message.tool_calls):
        return ()
    raise Unsupported("", "tools", "tools")


def _thinking(markup: Markup, prompt: ChatPrompt) -> Think:
    """What the template is told; nothing where the model cannot think. Raises Unsupported.

    A model that can does, unless it is told not to. Source: Ollama.
    """
    think = prompt.think
    if markup.tags is None:
        if think and not prompt.may_not_think:
            raise Unsupported("", "thinking", "think")
        return None
    if think is None:
        return True
    # Source: Ollama, for gpt-oss.
    return "high" if think == "max" and markup.is_harmony else think
