"""A request's prompt → token ids that fit its window, and how many of it were left out.

Owns which kind of prompt goes which way: through a template, around a gap, or as it is. What stays
of one that is too long is `fit`'s arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localrun.core import SCHEMA_PATH, ChatPrompt, FillPrompt, Message, RawPrompt
from localrun.errors import BadRequest, ContextOverflow, Unsupported
from localrun.ipc.messages import Submit
from localrun.runner.model import Matcher, Vocab
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
from localrun.runner.prompt.rendering import Renderer, fill_template
from localrun.runner.structured.constraint import Constraint, json_grammar
from localrun.schemas.parts import below


@dataclass(frozen=True, slots=True)
class Prepared:
    """The request's prompt as token ids, shorter than its window.

    `n_dropped` tokens of it were left out. The first `n_keep` stay should the window shift.
    The answer is held to `constraint`, by a matcher that the prompt thread makes of it.
    """

    submit: Submit
    tokens: list[int]
    n_dropped: int = 0
    n_keep: int = 0
    constraint: Constraint | None = None
    matcher: Matcher | None = None


class Composer:
    """Makes the prompts of one model. For one thread."""

    def __init__(self, vocab: Vocab, on_template: Callable[[int], None]) -> None:
        """`on_template` hears the id of a request whose template is about to run."""
        self._vocab = vocab
        self._on_template = on_template
        self._renderer = Renderer(vocab)

    def compose(self, submit: Submit) -> Prepared:
        """Raises BadRequest, ContextOverflow, TemplateFailed, Unsupported."""
        constraint = _constraint(submit.schema)  # first: it is cheap, and templates are not
        match submit.prompt:
            case RawPrompt(text=text):
                fitted = self._raw(text, submit)
            case FillPrompt() as prompt:
                fitted = self._fill(prompt, submit)
            case ChatPrompt() as prompt:
                fitted = self._chat(prompt, submit)
        # llama.cpp needs a token to start from; an empty prompt without BOS has none.
        tokens = fitted.tokens or self._vocab.tokenize(" ")
        if len(tokens) >= submit.n_ctx:
            raise ContextOverflow(len(tokens), submit.n_ctx)
        n_keep = self._n_keep(submit, tokens)
        return Prepared(submit, tokens, fitted.n_dropped, n_keep, constraint)

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

    def _chat(self, prompt: ChatPrompt, submit: Submit) -> Fitted:
        context, n_ctx, sampling = prompt.context, submit.n_ctx, submit.sampling
        if context and not 0 <= min(context) <= max(context) < self._vocab.n_tokens:
            raise BadRequest("context", "holds token ids that the model does not have")
        self._on_template(submit.id)
        render = self._renderer.template(submit.template)
        mark = self._renderer.spellings.marked

        def tokenize(messages: Sequence[Message]) -> list[int]:
            return [*context, *self._renderer.tokens(messages, render, is_start=not context)]

        if not submit.overflow.cuts:
            return whole(mark(prompt.messages), n_ctx, tokenize)
        # Before the marks: what is left out must not be between a mark and its spelling.
        shorter, n_left_out = with_last_shortened(prompt.messages, n_ctx, sampling.num_keep)
        messages = mark(shorter)
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
        return Fitted(fitted.tokens, fitted.n_dropped + n_left_out)


def _constraint(schema: str | None) -> Constraint | None:
    if schema is None:
        return None
    try:
        return Constraint(json_grammar(schema))
    except BadRequest as error:
        raise BadRequest(below(SCHEMA_PATH, error.path), error.problem) from None
