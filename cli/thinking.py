"""What a model thinks before it answers: how much is asked for, and how it is shown.

It is shown on standard error, since standard output has nothing but the answer.
Source: Ollama's words around it, and its levels.
"""

from cli.context import Context

LEVELS = ("low", "medium", "high", "max")
# What a person may write, and what a request has for it.
WORDS: dict[str, bool | str] = {"true": True, "false": False} | {level: level for level in LEVELS}


def think_value(word: str) -> bool | str:
    """The value for a request. Raises: ValueError, with the words that there are."""
    try:
        return WORDS[word.lower()]
    except KeyError:
        raise ValueError(f"`{word}` is none of {', '.join(WORDS)}") from None


class ThinkingView:
    """The thinking of one answer, between two lines that mark it. Hidden if not wanted."""

    def __init__(self, context: Context, *, is_hidden: bool) -> None:
        self._context = context
        self._is_hidden = is_hidden
        self._is_open = False
        self._ends_line = True

    def show(self, text: str) -> None:
        """The next piece; nothing happens when it is empty."""
        if self._is_hidden or not text:
            return
        if not self._is_open:
            self._is_open = True
            self._context.aside("Thinking...\n")
        self._context.aside(text)
        self._ends_line = text.endswith("\n")

    def close(self) -> None:
        """The answer begins, or there is none. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._context.aside(("" if self._ends_line else "\n") + "...done thinking.\n\n")
