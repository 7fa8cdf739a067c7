"""The official Python clients of Ollama and OpenAI against a live daemon with a real model."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from compatibility import NOT_YET, WORKS, Compatibility
from live import Daemon, wait_until

OLLAMA = f"ollama {version('ollama')}"
OPENAI = f"openai {version('openai')}"

MODEL = "smollm2:135m"
SHORT = {"num_predict": 8}
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture
def client(smollm2_daemon: Daemon) -> Iterator[ollama.Client]:
    client = ollama.Client(host=smollm2_daemon.url)
    yield client
    client._client.close()


@pytest.fixture
def openai_client(smollm2_daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_daemon.url}/v1", api_key="unused") as client:
        yield client


# ---- ollama


@pytest.mark.client(OLLAMA, "chat")
@pytest.mark.client(OLLAMA, "chat, streamed")
def test_ollama_chat_and_its_stream_say_the_same(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 16}
    whole = client.chat(MODEL, QUESTION, options=options)
    parts = list(client.chat(MODEL, QUESTION, options=options, stream=True))
    assert "Paris" in whole.message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts].count(True) == 1
    assert parts[-1].eval_count == whole.eval_count
    for duration in (whole.total_duration, whole.eval_duration, whole.prompt_eval_duration):
        assert duration
        assert duration > 0


@pytest.mark.client(OLLAMA, "completion")
@pytest.mark.client(OLLAMA, "completion without a template")
def test_ollama_generate_continues_its_context(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 8}
    first = client.generate(MODEL, "My name is Ada.", options=options)
    second = client.generate(MODEL, "What is my name?", context=first.context, options=options)
    assert first.context
    assert second.prompt_eval_count > first.prompt_eval_count
    raw = client.generate(MODEL, "one, two, three, four,", raw=True, options=options)
    assert "five" in raw.response
    assert raw.context is None


@pytest.mark.client(OLLAMA, "list models")
@pytest.mark.client(OLLAMA, "models in memory")
def test_ollama_loads_lists_and_unloads(client: ollama.Client) -> None:
    loaded = client.generate(MODEL)
    assert (loaded.done, loaded.done_reason) == (True, "load")
    running = client.ps().models
    assert [model.model for model in running] == [MODEL]
    assert running[0].size_vram == 0
    assert running[0].context_length == 2048
    listed = client.list().models
    assert [model.model for model in listed] == [MODEL]
    assert listed[0].details.quantization_level == "Q4_1"
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    wait_until(lambda: not client.ps().models, "the model to be unloaded")


@pytest.mark.client(OLLAMA, "show a model")
@pytest.mark.client(OLLAMA, "create a model")
@pytest.mark.client(OLLAMA, "copy and delete")
def test_ollama_shows_creates_and_deletes(client: ollama.Client, smollm2_path: Path) -> None:
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]
    assert "<|im_start|>" in (shown.template or "")
    digest = client.create_blob(smollm2_path)
    client.create("copy", files={"model.gguf": digest}, system="Answer in French.")
    assert client.show("copy").details.family == "llama"
    client.copy("copy", "other")
    for name in ("copy", "other"):
        assert client.delete(name).status == "success"
    with pytest.raises(ollama.ResponseError) as error:
        client.show("copy")
    assert error.value.status_code == 404


@pytest.mark.client(OLLAMA, "errors with status and text")
def test_ollama_errors_carry_status_and_text(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("no-such-model", QUESTION)
    assert missing.value.status_code == 404
    assert missing.value.error == "model 'no-such-model' not found"
    with pytest.raises(ollama.ResponseError) as bad:
        client.chat(MODEL, QUESTION, options={"temperature": "hot"})
    assert bad.value.status_code == 400
    assert "temperature" in bad.value.error


@pytest.mark.client(OLLAMA, "abort of a stream")
def test_ollama_stream_that_is_left_frees_its_slot(
    client: ollama.Client, smollm2_daemon: Daemon
) -> None:
    stream = client.generate(MODEL, "Tell me a long story.", stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: smollm2_daemon.n_busy() == 0, "the slot to be free")


# ---- what is not there yet is refused in words that a person understands

_OLLAMA_TRIES: dict[str, Callable[[ollama.Client], object]] = {
    "log-probabilities": lambda client: client.chat(MODEL, QUESTION, logprobs=True, options=SHORT),
}
_OPENAI_TRIES: dict[str, Callable[[openai.OpenAI], object]] = {
    "log-probabilities": lambda client: client.chat.completions.create(
        model=MODEL, messages=QUESTION, logprobs=True, max_tokens=8
    ),
}


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (ollama.ResponseError, openai.APIStatusError) as error:
        words = ("not support", "not available", "not found", "unknown request URL")
        if any(word in str(error) for word in words):
            return NOT_YET
        raise
    return WORKS


@pytest.mark.parametrize("feature", _OLLAMA_TRIES)
def test_ollama_gets_it_or_clear_words(
    client: ollama.Client, compatibility: Compatibility, feature: str
) -> None:
    outcome = _outcome(lambda: _OLLAMA_TRIES[feature](client))
    compatibility.add(OLLAMA, feature, outcome)
    assert outcome in (WORKS, NOT_YET)


@pytest.mark.parametrize("feature", _OPENAI_TRIES)
def test_openai_gets_it_or_clear_words(
    openai_client: openai.OpenAI, compatibility: Compatibility, feature: str
) -> None:
    outcome = _outcome(lambda: _OPENAI_TRIES[feature](openai_client))
    compatibility.add(OPENAI, feature, outcome)
    assert outcome in (WORKS, NOT_YET)


# ---- openai


@pytest.mark.client(OPENAI, "chat")
def test_openai_chat_and_its_stream_say_the_same(openai_client: openai.OpenAI) -> None:
    # With a seed nothing is reused, so that both evaluate the same.
    request = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 16, "seed": 1}
    whole = openai_client.chat.completions.create(**request)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    with openai_client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


@pytest.mark.client(OPENAI, "chat, streamed")
def test_openai_accumulated_stream_equals_the_plain_answer(
    openai_client: openai.OpenAI,
) -> None:
    # Without a limit: the accumulator refuses answers that ended for length.
    request = {"model": MODEL, "messages": QUESTION, "temperature": 0, "seed": 1}
    plain = openai_client.chat.completions.create(**request).choices[0]
    with openai_client.chat.completions.stream(**request) as stream:
        accumulated = stream.get_final_completion().choices[0]
    assert accumulated.message.content == plain.message.content
    assert accumulated.message.role == plain.message.role
    assert accumulated.finish_reason == plain.finish_reason


@pytest.mark.client(OPENAI, "limits and stop strings")
def test_openai_max_completion_tokens_and_stop_hold(openai_client: openai.OpenAI) -> None:
    short = openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_completion_tokens=3, temperature=0
    )
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 3
    stopped = openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, stop=["Paris"], temperature=0
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert "Paris" not in (stopped.choices[0].message.content or "")


@pytest.mark.client(OPENAI, "several choices")
def test_openai_gives_n_choices_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    request = {"model": MODEL, "messages": QUESTION, "temperature": 1, "max_tokens": 8}
    three = openai_client.chat.completions.create(**request, seed=5, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    single = openai_client.chat.completions.create(**request, seed=6)
    assert single.usage.prompt_tokens == three.usage.prompt_tokens
    greedy = openai_client.chat.completions.create(**request | {"temperature": 0}, n=3)
    texts = {choice.message.content for choice in greedy.choices}
    assert len(texts) == 1
    with openai_client.chat.completions.create(
        **request, seed=5, n=3, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    parts = [choice for chunk in chunks for choice in chunk.choices]
    assert sorted(part.index for part in parts if part.finish_reason) == [0, 1, 2]
    assert chunks[-1].usage.prompt_tokens == three.usage.prompt_tokens


@pytest.mark.client(OPENAI, "completion")
@pytest.mark.client(OPENAI, "completion, streamed")
def test_openai_completions_take_a_list_of_prompts(openai_client: openai.OpenAI) -> None:
    prompts = ["Name the capital of France.", "Name the capital of Italy."]
    request = {"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": 12, "n": 2}
    whole = openai_client.completions.create(**request)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert ["Paris" in choice.text for choice in whole.choices] == [True, True, False, False]
    with openai_client.completions.create(**request, stream=True) as stream:
        parts = [choice for chunk in stream for choice in chunk.choices]
    assert sorted(part.index for part in parts if part.finish_reason) == [0, 1, 2, 3]


@pytest.mark.client(OPENAI, "list models")
@pytest.mark.client(OPENAI, "show a model")
def test_openai_lists_models_and_finds_one(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == [MODEL]
    assert openai_client.models.retrieve(MODEL).object == "model"


@pytest.mark.client(OPENAI, "errors with status and text")
def test_openai_errors_are_of_the_right_class(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        openai_client.chat.completions.create(model="no-such-model", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as error:
        openai_client.chat.completions.create(model=MODEL, messages=QUESTION, n=0)
    assert error.value.param == "n"


def test_openai_shows_that_a_prompt_was_cut(openai_client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "word " * 5000}]
    answer = openai_client.chat.completions.create(model=MODEL, messages=long, max_tokens=1)
    assert answer.model_extra == {"truncated": True}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.model_extra is not None
    assert answer.usage.prompt_tokens_details.model_extra["dropped_tokens"] > 2000


# ---- with a key


@pytest.fixture
def keyed_url(start_daemon: Callable[..., Daemon]) -> str:
    return start_daemon(API_KEY="sk-of-this-server").url


@pytest.mark.client(OLLAMA, "API key")
def test_ollama_sends_the_key_of_its_variable(
    keyed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, status in (("sk-of-this-server", 0), ("sk-wrong", 401)):
        monkeypatch.setenv("OLLAMA_API_KEY", key)
        client = ollama.Client(host=keyed_url)
        if status:
            with pytest.raises(ollama.ResponseError, match="API key") as error:
                client.list()
            assert error.value.status_code == status
        else:
            assert client.list().models == []
        client._client.close()


@pytest.mark.client(OPENAI, "API key")
def test_openai_sends_its_key(keyed_url: str) -> None:
    with openai.OpenAI(base_url=f"{keyed_url}/v1", api_key="sk-of-this-server") as client:
        assert list(client.models.list()) == []
    with openai.OpenAI(base_url=f"{keyed_url}/v1", api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as error:
            client.models.list()
        assert error.value.code == "invalid_api_key"
