"""How models write calls: a table, one row a format. Pure.

What a row says is how a call begins and ends and how what is between is read. Whatever the
format, JSON that is the first thing in an answer and calls an offered tool is a call too
(`calls`), since models fall back on it.
"""

from dataclasses import dataclass

from localrun.runner.output.bodies import (
    Body,
    braced_call,
    deepseek_calls,
    either,
    function_tag,
    glm_arguments,
    json_values,
    kimi_calls,
    mistral_calls,
    python_calls,
    xml_parameters,
)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a call that has to come is written: around all of them, and the key of the arguments.

    With `opening` and `closing` around each call there may be several; else several are a list.
    """

    opening: str = ""
    closing: str = ""
    arguments_key: str = "arguments"
    is_list: bool = False


PLAIN_JSON = Writing()


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A way to write calls.

    A template that has one of `tells` in its text teaches it. A call stands behind one of
    `openings` and in front of `closing`, or of the next opening or the end if there is none. A
    body begins like JSON or like one of `starts`, in which `%s` is a tool's name; anything else
    behind an opening is text. `inner` are markers inside of bodies.
    """

    name: str
    tells: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    closing: str = ""
    body: Body = json_values
    starts: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    writing: Writing = PLAIN_JSON

    @property
    def is_json(self) -> bool:
        """True when `writing` is the model's own way, and not a way out."""
        return self.writing != PLAIN_JSON or not self.openings

    @property
    def markers(self) -> tuple[str, ...]:
        """All that has to be visible to be read."""
        return tuple(filter(None, (*self.openings, self.closing, *self.inner)))


GENERIC = CallFormat("json")

# The first row that tells counts. Source: the publishers' templates, and Ollama's parsers.
FORMATS = (
    CallFormat(
        "gemma4",
        ("<|tool_call>",),
        ("<|tool_call>",),
        "<tool_call|>",
        either(braced_call, json_values),
        ("call:%s{",),
        inner=('<|"|>',),
    ),
    CallFormat(
        "functiongemma",
        ("<start_function_call>",),
        ("<start_function_call>",),
        "<end_function_call>",
        either(braced_call, json_values),
        ("call:%s{",),
        inner=("<escape>",),
    ),
    CallFormat(
        "deepseek",
        ("<｜tool▁calls▁begin｜>",),
        ("<｜tool▁calls▁begin｜>",),
        "<｜tool▁calls▁end｜>",
        deepseek_calls,
        ("<｜tool▁call▁begin｜>",),
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    CallFormat(
        "kimi",
        ("<|tool_calls_section_begin|>",),
        ("<|tool_calls_section_begin|>",),
        "<|tool_calls_section_end|>",
        kimi_calls,
        ("<|tool_call_begin|>",),
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    CallFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        body=either(mistral_calls, json_values),
        starts=("%s[ARGS]", "%s[CALL_ID]"),
        inner=("[ARGS]", "[CALL_ID]"),
        writing=Writing("[TOOL_CALLS]", is_list=True),
    ),
    CallFormat(
        "cohere",
        ("<|START_ACTION|>",),
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
    ),
    CallFormat(
        "lfm2",
        ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
        ("<|tool_call_start|>",),
        "<|tool_call_end|>",
        either(python_calls, json_values),
        ("[%s(", "%s("),
    ),
    CallFormat(
        "minimax",
        ("<minimax:tool_call>",),
        ("<minimax:tool_call>",),
        "</minimax:tool_call>",
        xml_parameters,
        ('<invoke name="%s">',),
    ),
    CallFormat(
        "seed",
        ("<seed:tool_call>",),
        ("<seed:tool_call>",),
        "</seed:tool_call>",
        xml_parameters,
        ("<function=%s>",),
    ),
    CallFormat("nemotron", ("<TOOLCALL>",), ("<TOOLCALL>",), "</TOOLCALL>"),
    CallFormat("apertus", ("<|tools_prefix|>",), ("<|tools_prefix|>",), "<|tools_suffix|>"),
    CallFormat(
        "olmo3",
        ("<function_calls>",),
        ("<function_calls>",),
        "</function_calls>",
        either(python_calls, json_values),
        ("[%s(", "%s("),
    ),
    CallFormat("tool_calls", ("<tool_calls>",), ("<tool_calls>",), "</tool_calls>"),
    # Three ways to write a body share the tags; each says by itself which one it is.
    CallFormat(
        "tagged",
        ("<tool_call>",),
        ("<tool_call>",),
        "</tool_call>",
        either(json_values, xml_parameters, glm_arguments),
        ("<function=%s>", "%s"),
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        writing=Writing("<tool_call>\n", "\n</tool_call>"),
    ),
    CallFormat("granite", ("<|tool_call|>",), ("<|tool_call|>",)),
    CallFormat(
        "function_tag",
        ("<function=",),
        ("<function=",),
        "</function>",
        function_tag,
        ("%s>",),
    ),
    CallFormat("functools", (" functools[",), ("functools",)),
    CallFormat("action", ("Action:",), ("Action:",)),
    CallFormat(
        "llama",
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        ("<|python_tag|>",),
        body=either(json_values, python_calls),
        starts=("%s(",),
        writing=Writing(arguments_key="parameters"),
    ),
)


def format_of(template: str) -> CallFormat:
    """The format that a template's text teaches; `GENERIC` where it tells nothing."""
    for row in FORMATS:
        if any(tell in template for tell in row.tells):
            return row
    return GENERIC


def inferred(marker: str) -> CallFormat:
    """The format of calls that are JSON behind `marker`, as a Go template writes them.

    Source: Ollama's generic parser.
    """
    marker = marker.strip()
    if marker in ("", "{", "["):
        return GENERIC
    is_tag = marker.startswith("<") and marker.endswith(">") and len(marker) > 2
    closing = f"</{marker[1:]}" if is_tag and marker[1:-1].isidentifier() else ""
    return CallFormat("inferred", openings=(marker,), closing=closing)
