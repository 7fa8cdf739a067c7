"""A template's text → what it teaches its model: tags, the format of calls, whether tools have a
place. Pure; templates are looked at as text, never executed.
"""

import re
from functools import lru_cache

from localrun.runner.output.formats import GENERIC, CallFormat, format_of, inferred
from localrun.runner.output.style import Markup
from localrun.runner.structured.constraint import ThinkTags

# What tells of thinking, and the tags that it stands for; the first that is found counts.
# Source: the publishers' templates, and Ollama's parsers.
TAGS = (
    ("<|START_THINKING|>", ThinkTags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<|channel>", ThinkTags("<|channel>thought", "<channel|>")),
    ("[THINK]", ThinkTags("[THINK]", "[/THINK]")),
    ("<seed:think>", ThinkTags("<seed:think>", "</seed:think>")),
    ("<mm:think>", ThinkTags("<mm:think>", "</mm:think>")),
    ("<|inner_prefix|>", ThinkTags("<|inner_prefix|>", "<|inner_suffix|>")),
    ("<think>", ThinkTags("<think>", "</think>")),
)
_THINK = TAGS[-1][1]

_HARMONY = ("<|channel|>", "<|message|>", "<|start|>")
# In harmony everything in front of the last message's text is free.
_HARMONY_TAGS = ThinkTags("<|channel|>", "final<|message|>")

_JINJA_SPLIT = re.compile(r"split\(\s*['\"]</think>")
_GO_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_GO_THINKING = re.compile(
    r"\}\}([^{}]+)\{\{-?\s*(?:\$\w+)?\.Thinking\s*-?\}\}([^{}]+)\{\{", re.DOTALL
)
_GO_CALLS = re.compile(r"\{\{[^{}]*\.ToolCalls[^{}]*\}\}")


@lru_cache(maxsize=64)  # a model has one; names that share its weights may bring a few more
def jinja_markup(source: str) -> Markup:
    """What the template of a GGUF file teaches. Source: Ollama's rules for capabilities."""
    knows_tools = "tools" in source or "tool_call" in source
    if _is_harmony(source):
        return Markup(_HARMONY_TAGS, GENERIC, knows_tools, is_harmony=True)
    return Markup(_tags(source), format_of(source), knows_tools)


@lru_cache(maxsize=64)
def go_markup(source: str) -> Markup:
    """What a Modelfile's TEMPLATE teaches. Source: as `jinja_markup`, and its generic parsers."""
    actions = " ".join(_GO_ACTION.findall(source))
    knows_tools = ".Tools" in actions
    if _is_harmony(source):
        return Markup(_HARMONY_TAGS, GENERIC, knows_tools, is_harmony=True)
    form = format_of(source)
    if form is GENERIC:
        form = _inferred_format(source)
    return Markup(_go_tags(source) if ".Thinking" in actions else None, form, knows_tools)


def _is_harmony(source: str) -> bool:
    return all(tell in source for tell in _HARMONY)


def _tags(source: str) -> ThinkTags | None:
    for tell, tags in TAGS:
        if tell in source and (tags is not _THINK or tags.closing in source):
            return tags
    # One that only takes the thinking out of old answers has a model that thinks by itself.
    is_split = _JINJA_SPLIT.search(source) and "reasoning_content" not in source
    return _THINK if is_split else None


def _go_tags(source: str) -> ThinkTags | None:
    """The texts around the thinking of a turn."""
    match = _GO_THINKING.search(source)
    if match and match[1].strip() and match[2].strip():
        return ThinkTags(match[1].strip(), match[2].strip())
    return _tags(source)


def _inferred_format(source: str) -> CallFormat:
    """The first text behind the condition of a turn's calls marks them."""
    match = _GO_CALLS.search(source)
    if match is None:
        return GENERIC
    texts = _GO_ACTION.split(source[match.end() :])
    marker = next((text for text in texts if text.strip()), "")
    return inferred(marker.partition("{")[0])
