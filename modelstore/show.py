"""A model described for people and clients: capabilities, header values, Modelfile, parameters.

Pure: works on a record and a header that the caller has read. Templates are looked at as text and
never executed, so what they can do is a good guess and not a promise.
Source: Ollama `POST /api/show`, `server/images.go` (capability rules).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from modelstore.header import ArrayInfo, Header
from modelstore.modelfile import Modelfile, expressible, is_expressible, render
from modelstore.records import Record
from modelstore.vocabulary import Vocabulary

# The order in which capabilities are listed.
CAPABILITIES = (
    "completion",
    "tools",
    "insert",
    "vision",
    "embedding",
    "thinking",
    "image",
    "audio",
)
_THINKING_FAMILIES = ("gptoss", "gpt-oss")
_NOT_IN_MODEL_INFO = ("general.name", "tokenizer.chat_template")
_NAME_COLUMN = 30
_GO_ACTION = re.compile(r"\{\{(?!-?\s*/\*).*?\}\}", re.DOTALL)  # comments excluded
# What a Jinja template of a model that thinks has in it: a tag, or harmony's channels.
_THINKING_TELLS = (
    "[THINK]",
    "<|START_THINKING|>",
    "<|channel>",
    "<seed:think>",
    "<mm:think>",
    "<|inner_prefix|>",
)
_JINJA_SPLIT = re.compile(r"split\(\s*['\"]</think>")
_HARMONY_TELLS = ("<|channel|>", "<|message|>", "<|start|>")


def capabilities(
    record: Record,
    header: Header | None,
    projector: Header | None = None,
    vocabulary: Vocabulary | None = None,
) -> list[str]:
    """What the model can do, in the order of `CAPABILITIES`.

    `header` may be None when the weights cannot be read; `projector` is the first projector's.
    Without a `vocabulary` nothing is known of tokens around gaps.
    """
    architecture = header.architecture if header else record.config.model_family
    jinja = (header.chat_template if header else None) or ""
    go_fields = _go_fields(record.template or "")
    metadata = header.metadata if header else {}
    found = set(record.config.capabilities)
    found.add("embedding" if header and header.is_embedding_model else "completion")
    if "Tools" in go_fields or "tools" in jinja or "tool_call" in jinja:
        found.add("tools")
    if "Suffix" in go_fields or (vocabulary is not None and vocabulary.fills_gaps):
        found.add("insert")
    if record.projector_paths or f"{architecture}.vision.block_count" in metadata:
        found.add("vision")
    if f"{architecture}.audio.block_count" in metadata or _hears(projector):
        found.add("audio")
    if "Thinking" in go_fields or _thinks(jinja) or architecture in _THINKING_FAMILIES:
        found.add("thinking")
    return [name for name in CAPABILITIES if name in found]


def model_info(header: Header, *, verbose: bool = False) -> dict[str, Any]:
    """The header's values as clients read them; arrays are None unless `verbose`.

    For verbose output the header must have been read with `arrays=True`.
    """
    info = {
        key: _shown(value, verbose=verbose)
        for key, value in header.metadata.items()
        if key not in _NOT_IN_MODEL_INFO
    }
    info["general.parameter_count"] = header.parameter_count
    return info


def tensor_list(header: Header) -> list[dict[str, Any]]:
    """Name, type and shape of every tensor."""
    return [
        {"name": tensor.name, "type": tensor.type_name, "shape": list(tensor.shape)}
        for tensor in header.tensors
    ]


def parameters_text(record: Record) -> str:
    """One line per value, sorted by name; texts in double quotes, lists in their own order."""
    lines = []
    for name, item in _single_values(record):
        shown = json.dumps(item, ensure_ascii=False) if isinstance(item, str) else _plain(item)
        lines.append(f"{name:<{_NAME_COLUMN}} {shown}")
    return "\n".join(lines)


def to_modelfile(record: Record) -> Modelfile:
    """The Modelfile that would make this model again; weights are named by their blob paths.

    A model without a stored template gets none here: the one inside the GGUF goes on to count.
    Texts that the grammar cannot carry are replaced by the nearest that it can.
    """
    values = [(name, expressible(_plain(item))) for name, item in _single_values(record)]
    return Modelfile(
        froms=tuple(
            expressible(str(path)) for path in [*record.model_paths, *record.projector_paths]
        ),
        parameters=tuple(values),
        template=expressible(record.template) if record.template else None,
        system=expressible(record.system) if record.system else None,
        adapters=tuple(expressible(str(path)) for path in record.adapter_paths),
        licenses=tuple(expressible(text) for text in record.licenses),
        messages=tuple((m["role"], expressible(m["content"])) for m in record.messages),
        renderer=record.config.renderer or None,
        parser=record.config.parser or None,
        requires=record.config.requires or None,
    )


def render_modelfile(record: Record) -> str:
    """The text of `to_modelfile`, with a heading that says how to build upon it."""
    name = record.name.display()
    inexact = "".join(
        f"# {word} is not exact: a Modelfile holds no carriage returns, no control characters and "
        "no three quotes at the end of a line\n"
        for word in _inexact(record)
    )
    return (
        f"{inexact}"
        "# Modelfile generated by localrun. To build upon this model, replace its FROM lines by:\n"
        f"# FROM {name}\n\n{render(to_modelfile(record))}"
    )


def _inexact(record: Record) -> list[str]:
    """The instructions whose texts the grammar cannot carry as they are."""
    texts = [
        *((f"PARAMETER {name}", _plain(item)) for name, item in _single_values(record)),
        ("TEMPLATE", record.template or ""),
        ("SYSTEM", record.system or ""),
        *(("LICENSE", text) for text in record.licenses),
        *(("MESSAGE", message["content"]) for message in record.messages),
    ]
    return list(dict.fromkeys(word for word, text in texts if not is_expressible(text)))


def _go_fields(template: str) -> set[str]:
    """Field names that the actions of a Go template mention, such as `Tools`."""
    actions = " ".join(_GO_ACTION.findall(template))
    return set(re.findall(r"\.([A-Z][A-Za-z]*)", actions))


def _thinks(jinja: str) -> bool:
    if "<think>" in jinja and "</think>" in jinja:
        return True
    if _JINJA_SPLIT.search(jinja) is not None and "reasoning_content" not in jinja:
        return True
    is_harmony = all(tell in jinja for tell in _HARMONY_TELLS)
    return is_harmony or any(tell in jinja for tell in _THINKING_TELLS)


def _hears(projector: Header | None) -> bool:
    if projector is None:
        return False
    return any(
        key.endswith(".has_audio_encoder") and value is True
        for key, value in projector.metadata.items()
    )


def _shown(value: Any, *, verbose: bool) -> Any:
    if isinstance(value, ArrayInfo):
        return None
    if isinstance(value, tuple):
        return list(value) if verbose else None
    return value


def _single_values(record: Record) -> Iterator[tuple[str, Any]]:
    """Parameters by name: each text of a list stands alone, numbers of a list stay together."""
    for name, value in sorted(record.parameters.items()):
        if not isinstance(value, list | tuple):
            yield name, value
        elif any(isinstance(item, str) for item in value):
            yield from ((name, item) for item in value)
        else:
            yield name, value


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    if isinstance(value, dict):
        return json.dumps(value)
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
