"""How long prompts and answers are: fixed, shaped like chats, or out of a file. No I/O.

Source of the chat shape: the mean lengths that papers on LLM serving report for ShareGPT's
conversations, 161 tokens a prompt and 338 an answer, with a long tail. The spread (sigma) is ours.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import msgspec


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of one prompt and the most tokens of its answer."""

    n_prompt: int
    n_output: int


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal distribution: the median is exp(mu), the mean exp(mu + sigma² / 2)."""

    mu: float
    sigma: float

    def draw(self, chosen: random.Random) -> int:
        """At least one token."""
        return max(1, round(chosen.lognormvariate(self.mu, self.sigma)))


CHAT_PROMPT = LogNormal(mu=math.log(70), sigma=1.29)  # mean 161
CHAT_OUTPUT = LogNormal(mu=math.log(205), sigma=1.0)  # mean 338


def chat_lengths(seed: int) -> Iterator[Length]:
    """Lengths without end, the same for the same `seed`."""
    chosen = random.Random(f"lengths {seed}")
    while True:
        yield Length(CHAT_PROMPT.draw(chosen), CHAT_OUTPUT.draw(chosen))


def repeated(lengths: Sequence[Length]) -> Iterator[Length]:
    """`lengths` in their order, again and again."""
    return cycle(lengths)


def clipped(length: Length, window: int) -> Length:
    """`length` within `window` tokens, with room for the template around the prompt."""
    n_output = min(length.n_output, max(1, window // 2))
    n_room = window - n_output - window // 8
    return Length(max(1, min(length.n_prompt, n_room)), n_output)


def parse_lengths(text: str) -> list[Length]:
    """The lines of a file: `PROMPT OUTPUT`, or JSON, `{"prompt": 200, "output": 100}`.

    Blank lines and those that begin with `#` are left out. Raises ValueError, which names the line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            try:
                found.append(_parse_line(stripped))
            except ValueError:
                raise ValueError(
                    f"line {number}, `{stripped[:60]}`, is not two numbers of tokens; write "
                    '`200 100` or `{"prompt": 200, "output": 100}`'
                ) from None
    if not found:
        raise ValueError("there is no line with lengths")
    return found


class _Line(msgspec.Struct):
    prompt: int
    output: int


def _parse_line(line: str) -> Length:
    if line.startswith("{"):
        wire = msgspec.json.decode(line, type=_Line)
        n_prompt, n_output = wire.prompt, wire.output
    else:
        n_prompt, n_output = map(int, line.split())
    if min(n_prompt, n_output) < 1:
        raise ValueError
    return Length(n_prompt, n_output)
