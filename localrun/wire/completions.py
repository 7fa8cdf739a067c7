"""OpenAI's older dialect of completions: request bodies → `Call`. Replies: `openai_writer`.

Owns the wire names of `/v1/completions` that chats do not have. Knows neither URLs nor statuses.
Source: OpenAI's API reference, "Completions". As in Ollama's `openai/openai.go` a prompt is a
user's message for the model's template, not text to be continued; native requests have `raw`.
"""

from typing import Any

import msgspec

from localrun.core import Call, ChatPrompt, FillPrompt, Message, Prompt
from localrun.errors import BadRequest
from localrun.wire.bodies import decode, required_model, wanted_logprobs
from localrun.wire.openai import (
    CompletionRequest,
    Shared,
    n_each,
    options_of,
    request_of,
)
from localrun.wire.structure import PLACES, schema_of_response_format

# As many as eight prompts with the largest `n`. The queue limit counts a request once, however
# many sequences it asks for, so something else has to bound them.
MAX_CHOICES = 1024


class _Completion(Shared, kw_only=True):
    prompt: str | list[Any] | None = None
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


_COMPLETION = msgspec.json.Decoder(_Completion)


def decode_completions(body: bytes) -> CompletionRequest:
    """The request of POST /v1/completions. Raises BadRequest, Unsupported."""
    wire = decode(_COMPLETION, body)
    model = required_model(wire.model, "model")
    _refuse(wire)
    prompts = tuple(_prompt(text, wire.suffix) for text in _texts(wire.prompt))
    call = Call(
        model,
        prompts,
        options_of(wire),
        capability="generate",
        n_each=n_each(wire),
        # One number for both; OpenAI itself gives 5 at most. 0 is the token alone.
        top_logprobs=wanted_logprobs(wire.logprobs is not None, wire.logprobs, "logprobs"),
        schema=schema_of_response_format(wire.response_format),
        places=PLACES,
    )
    if call.n_choices > MAX_CHOICES:
        raise BadRequest(
            "prompt", f"{len(prompts)} prompts with n={call.n_each} are more than {MAX_CHOICES}"
        )
    return request_of(wire, call, body)


def _texts(prompt: str | list[Any] | None) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt", "a text or a list of texts is required")
    for i, text in enumerate(prompt):
        if not isinstance(text, str):
            raise BadRequest(f"prompt[{i}]", "must be a text; token ids are not available")
    return prompt


def _prompt(text: str, suffix: str | None) -> Prompt:
    return FillPrompt(text, suffix) if suffix else ChatPrompt((Message("user", text),))


def _refuse(wire: _Completion) -> None:
    if wire.echo:
        raise BadRequest("echo", "the prompt is not repeated; put it in front of the text yourself")
    if (wire.best_of or 0) > (wire.n or 1):
        raise BadRequest("best_of", "choosing the best of several is not available; use n")
