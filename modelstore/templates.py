"""Which chat template counts for a model, and where it is from.

A TEMPLATE of the Modelfile wins over the template inside the GGUF file; where there is neither, the
vocabulary of a model that was trained for chats tells how its turns are marked. A base model gets
none. Source: Ollama's precedence as far as it is about text alone: it prefers the file's template
where that can do more, such as tools.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from modelstore.header import Header
from modelstore.records import Record
from modelstore.vocabulary import Vocabulary, vocabulary_of

MODELFILE, GGUF, NONE = "modelfile", "gguf", "none"

# How publishers mark what was trained for chats.
_SAYS_CHAT = re.compile(r"(?:^|[^a-z])(?:instruct|chat|it)(?:$|[^a-z])", re.IGNORECASE)
_NAME_KEYS = ("general.finetune", "general.name", "general.basename")


@dataclass(frozen=True, slots=True)
class Fallback:
    """A family's template: its vocabulary has all `marks`, its chat models end turns with `end`."""

    name: str
    marks: tuple[str, ...]
    end: str
    source: str


# Go templates, since those travel with a request. Source: the formats that the publishers of the
# families document.
FALLBACKS = (
    Fallback(
        "chatml",
        ("<|im_start|>", "<|im_end|>"),
        "<|im_end|>",
        "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}"
        "<|im_start|>assistant\n",
    ),
    Fallback(
        "llama3",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "{{ range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n"
        "{{ .Content }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    Fallback(
        "gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        "<start_of_turn>user\n{{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}"
        "<end_of_turn>\n<start_of_turn>model\n{{ .Response }}<end_of_turn>\n",
    ),
    # It ends its turns with the EOS that base models have too: only its name can tell.
    Fallback(
        "mistral",
        ("[INST]", "[/INST]"),
        "",
        "[INST] {{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}[/INST] {{ .Response }}</s>",
    ),
)


@dataclass(frozen=True, slots=True)
class ActiveTemplate:
    """`source` is None where there is none; `go` is what the runner must be given, None where it
    finds the template in the weights, or has none. `origin` says which: modelfile, gguf,
    fallback:NAME or none."""

    origin: str
    source: str | None = None
    go: str | None = None


def active_template(record: Record, header: Header | None) -> ActiveTemplate:
    """What turns a conversation with the model into its prompt. May read the weights' header."""
    if record.template:
        return ActiveTemplate(MODELFILE, record.template, record.template)
    if header is None:
        return ActiveTemplate(NONE)
    return template_of_weights(header, lambda: vocabulary_of(record.model_paths))


def template_of_weights(header: Header, vocabulary: Callable[[], Vocabulary]) -> ActiveTemplate:
    """As `active_template`, for weights that no Modelfile says anything about."""
    if header.chat_template:
        return ActiveTemplate(GGUF, header.chat_template)
    found = fallback(header, vocabulary())
    if found is None:
        return ActiveTemplate(NONE)
    return ActiveTemplate(f"fallback:{found.name}", found.source, found.source)


def fallback(header: Header, vocabulary: Vocabulary) -> Fallback | None:
    """The family's template for a model without one; None for one that was not trained for chats.

    Base models have the marks too. One of chats ends its answers with the end of a turn, or says
    by its name what it is.
    """
    says_chat = any(_SAYS_CHAT.search(header.text(key)) for key in _NAME_KEYS)
    for family in FALLBACKS:
        if vocabulary.has(*family.marks) and (says_chat or family.end in vocabulary.ends):
            return family
    return None
