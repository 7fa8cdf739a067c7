"""An answer's text → text and calls of offered tools. No I/O.

Text leaves as soon as it cannot be the beginning of a call, and what was taken for one and is
none leaves as it was: nothing is lost. White space around calls is markup, but for what parts two
texts. Of an answer that has to be calls, what the limit cuts is a fragment that nobody can use,
and is dropped.
"""

import re
import secrets
import string
from collections.abc import Callable, Generator, Iterator

from localrun.core import ToolCall
from localrun.runner.output.bodies import Body, json_values, whole_calls
from localrun.runner.output.formats import CallFormat
from localrun.runner.output.lenient import NotReadable
from localrun.runner.output.offered import N_TELLING, Found, Offered
from localrun.runner.output.parts import Called, Part, Said, Stepping
from localrun.runner.output.scan import Collected, agree, first, n_begun
from localrun.runner.output.thinking import MAX_HELD_BLANKS

# Ends of a body that were none because they stood inside a text: so often one looks further.
_MAX_FALSE_ENDS = 8

_LEAD = re.compile(r"\s*(?:```\w*\s*)?")
_FENCE = re.compile(r"```\w*\s*")
# Between calls, and what a model writes too much of.
_SEPARATORS = re.compile(r"[\s,;\]}]*(?:```)?\s*")
_TELLING = re.compile(r'[\\"{}\[\]]')

_ID_ALPHABET = string.ascii_lowercase + string.digits


def new_call_id() -> str:
    """Source: the ids that Ollama gives."""
    return "call_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(8))


class Brackets:
    """Follows the brackets of JSON that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_escaped = False
        self.is_in_text = False

    def feed(self, text: str) -> int | None:
        """Where in `text` the value ends that began with the first bracket of all."""
        at = 1 if self._is_escaped and text else 0
        self._is_escaped = self._is_escaped and not text
        while match := _TELLING.search(text, at):
            char, at = match.group(), match.end()
            if self.is_in_text:
                if char == "\\":
                    self._is_escaped = at >= len(text)
                    at += 1
                self.is_in_text = char != '"'
            elif char == '"':
                self.is_in_text = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at
        return None


class CallReader(Stepping):
    """Finds the calls in what follows the thinking; see `Reader`."""

    def __init__(
        self,
        form: CallFormat,
        offered: Offered,
        new_id: Callable[[], str] = new_call_id,
        *,
        is_forced: bool = False,
    ) -> None:
        """Calls get their ids from `new_id`; `is_forced` when the answer has to be calls."""
        super().__init__(self._start)
        self._is_forced = is_forced
        self._form = form
        self._offered = offered
        self._new_id = new_id
        self._starts = tuple(
            start.replace("%s", name) for start in form.starts for name in offered.names
        )
        self._ends = tuple(filter(None, (form.closing, *form.openings)))
        # Of what may be a call: what stands in front of its body, and the body.
        self._lead = ""
        self._gathered = Collected()
        self._brackets = Brackets()
        self._n_false_ends = 0
        self._is_behind_call = False
        # White space between the last text and the calls behind it, and behind these.
        self._has_said = False
        self._front = self._behind = ""

    def finish(self, *, is_cut: bool) -> Iterator[Part]:
        """See `Reader.finish`."""
        is_gathering = self._step in (self._bare, self._body)
        body = self._gathered.text() + self._held if is_gathering else ""
        rest = self._lead + body if is_gathering else self._held
        self._held = ""
        found = None
        if self._step == self._bare:
            found = self._read(json_values, body, is_whole=not is_cut)
        elif self._step == self._body and not (is_cut and self._form.closing):
            found = self._read(self._form.body, self._unclosed(body), is_whole=not is_cut)
        if found is not None:
            yield from self._called(found, len(rest))
            return
        if is_cut and is_gathering:
            n_called = yield from self._called_before_cut(self._unclosed(body))
            rest = rest[n_called:]
        if rest:
            is_markup = self._is_behind_call and not rest.strip().strip("`")
            is_dropped = is_markup or (is_cut and self._is_forced)
            yield Said("", len(rest)) if is_dropped else self._text(rest)

    def _unclosed(self, body: str) -> str:
        """The body without the beginning of a closing marker."""
        return body[: len(body) - n_begun(body, filter(None, (self._form.closing,)))]

    def _called_before_cut(self, body: str) -> Generator[Part, None, int]:
        """The whole calls of a body that has been cut; returns how many characters they take.

        Of a free answer they are those of a list that goes on like a call: in any other text a
        call is one when its end is there.
        """
        found, n_body = whole_calls(body, self._offered)
        rest = _SEPARATORS.sub("", body[n_body:], count=1)
        is_list = body.lstrip().startswith("[") and self._offered.may_begin(rest)
        if not found or not (is_list or self._is_forced):
            return 0
        n_chars = len(self._lead) + len(body) - len(rest)
        yield from self._called(found, n_chars)
        return n_chars

    # ---- steps: each takes what it is sure of from what is held

    def _start(self) -> Iterator[Part]:
        """JSON is a call only where it is the first thing in the answer."""
        lead = _LEAD.match(self._held)
        assert lead is not None
        n_lead = lead.end()
        rest = self._held[n_lead:]
        if rest[:1] in ("{", "["):
            self._begin_bare(n_lead)
        elif (rest and rest not in ("`", "``")) or len(self._held) > MAX_HELD_BLANKS:
            self._step = self._prose
        yield from ()

    def _begin_bare(self, n_lead: int) -> None:
        self._lead, self._held = self._held[:n_lead], self._held[n_lead:]
        self._gathered, self._brackets = Collected(), Brackets()
        self._step = self._bare

    def _bare(self) -> Iterator[Part]:
        n_before = self._gathered.n_chars
        text, self._held = self._held, ""
        self._gathered.add(text, ())
        end = self._brackets.feed(text)
        if end is None:
            if n_before < N_TELLING and not self._offered.may_begin(self._telling()):
                self._give_up()
            return
        whole = self._gathered.text()
        n_body = n_before + end
        found = self._read(json_values, whole[:n_body])
        if found is None:
            self._give_up()
            return
        yield from self._called(found, len(self._lead) + n_body)
        self._held = whole[n_body:]
        self._step = self._between

    def _between(self) -> Iterator[Part]:
        separators = _SEPARATORS.match(self._held)
        assert separators is not None
        rest = self._held[separators.end() :]
        if rest in ("`", "``"):
            return
        if separators.end():
            yield Said("", separators.end())
        self._held = rest
        if rest[:1] in ("{", "["):
            self._begin_bare(0)
        elif rest:
            self._step = self._prose

    def _prose(self) -> Iterator[Part]:
        if self._is_behind_call:
            text = self._held.lstrip()
            if n_blank := len(self._held) - len(text):
                self._behind = (self._behind + self._held[:n_blank])[:MAX_HELD_BLANKS]
                self._held = text
                yield Said("", n_blank)
            if not text:
                return
        openings = self._form.openings
        found = first(self._held, openings)
        if found is None:
            yield from self._say(self._n_sure(openings))
            return
        place, opening = found
        n_said = len(self._held[:place].rstrip())
        yield from self._say(n_said)
        if not self._is_behind_call:
            self._front = self._held[: place - n_said]
        n_lead = place - n_said + len(opening)
        self._lead, self._held = self._held[:n_lead], self._held[n_lead:]
        self._gathered, self._n_false_ends = Collected(), 0
        self._step = self._body

    def _n_sure(self, openings: tuple[str, ...]) -> int:
        if not openings:
            return len(self._held)
        n_sure = len(self._held) - n_begun(self._held, openings)
        n_said = len(self._held[:n_sure].rstrip())
        return n_said if n_sure - n_said <= MAX_HELD_BLANKS else n_sure

    def _say(self, n_chars: int) -> Iterator[Part]:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        if text:
            yield self._text(text)

    def _text(self, text: str) -> Said:
        """What is said; behind a call with the white space that parts it from the text before."""
        gap = self._behind or self._front if self._is_behind_call and self._has_said else ""
        self._is_behind_call, self._has_said = False, True
        self._front = self._behind = ""
        return Said(gap + text, len(text))

    def _body(self) -> Iterator[Part]:
        n_before = self._gathered.n_chars
        text, self._held = self._held, ""
        end = self._gathered.add(text, self._ends)
        if n_before < N_TELLING and not self._may_begin(self._telling()):
            # The opening was said as a word; what follows may still hold a call.
            self._held = self._gathered.text()
            self._step = self._prose
            yield self._text(self._lead)
        elif end is not None:
            yield from self._end_body(self._gathered.text(), *end)

    def _end_body(self, whole: str, place: int, marker: str) -> Iterator[Part]:
        while (found := self._read(self._form.body, whole[:place], is_whole=True)) is None:
            if not self._may_be_false_end(whole[:place]):
                break
            self._n_false_ends += 1
            behind = place + len(marker)
            further = first(whole[behind:], self._ends)
            if further is None:
                return
            place, marker = behind + further[0], further[1]
        n_body = place + (len(marker) if marker == self._form.closing else 0)
        self._held = whole[n_body:]
        self._step = self._prose
        if found is not None:
            yield from self._called(found, len(self._lead) + n_body)
        else:
            yield self._text(self._lead + whole[:n_body])

    # ---- what may be a call

    def _telling(self) -> str:
        return self._gathered.text()[:N_TELLING]

    def _may_begin(self, text: str) -> bool:
        """Whether a body that begins like this may become a call."""
        text = text.lstrip()
        if not text or agree(text, "```"):
            fence = _FENCE.match(text)
            return fence is None or self._offered.may_begin(text[fence.end() :])
        if text[0] in "{[" and self._offered.may_begin(text):
            return True
        return any(agree(text, start) for start in self._starts)

    def _may_be_false_end(self, body: str) -> bool:
        brackets = Brackets()
        brackets.feed(body)
        return brackets.is_in_text and self._n_false_ends < _MAX_FALSE_ENDS

    def _read(self, body: Body, text: str, *, is_whole: bool = False) -> list[Found] | None:
        try:
            return body(text, self._offered, is_whole)
        except NotReadable:
            return None

    def _called(self, found: list[Found], n_chars: int) -> Iterator[Part]:
        self._is_behind_call = True
        self._behind = ""
        for call in found:
            yield Called(ToolCall(call.name, call.arguments, self._new_id()), n_chars)
            n_chars = 0

    def _give_up(self) -> None:
        self._held = self._lead + self._gathered.text()
        self._step = self._prose
