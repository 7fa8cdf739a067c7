"""The official Python clients of Ollama and OpenAI and vectors of a real model for them."""

import math
from collections.abc import Sequence
from importlib.metadata import version

import ollama
import openai
import pytest

OLLAMA = f"ollama {version('ollama')}"
OPENAI = f"openai {version('openai')}"

TEXTS = ["A cat.", "A kitten.", "The stock market."]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def check(vectors: Sequence[Sequence[float]], n_dims: int) -> None:
    """Vectors of `TEXTS`: of that length, and nearer where the texts mean the same."""
    assert [len(vector) for vector in vectors] == [n_dims] * 3
    cat, kitten, market = vectors
    assert dot(cat, kitten) > dot(cat, market)


@pytest.mark.client(OLLAMA, "embeddings")
def test_ollama_embeds_texts(client: ollama.Client) -> None:
    reply = client.embed("minilm", TEXTS)
    check(reply.embeddings, 384)
    assert reply.prompt_eval_count
    check(client.embed("minilm", TEXTS, dimensions=128).embeddings, 128)
    older = client.embeddings("minilm", TEXTS[0]).embedding
    assert math.isclose(dot(older, reply.embeddings[0]), 1, rel_tol=1e-3)
    # A model for text has vectors, too.
    assert len(client.embed("smollm2:135m", "Paris").embeddings[0]) == 576
    with pytest.raises(ollama.ResponseError) as error:
        client.embed("no-such-model", "Paris")
    assert error.value.status_code == 404


@pytest.mark.client(OPENAI, "embeddings")
def test_openai_embeds_texts(openai_client: openai.OpenAI) -> None:
    # Unless it is told otherwise, this client asks for base64 and decodes it itself.
    reply = openai_client.embeddings.create(model="minilm", input=TEXTS)
    check([one.embedding for one in reply.data], 384)
    assert [one.index for one in reply.data] == [0, 1, 2]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens
    plain = openai_client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
    for one, other in zip(reply.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    with pytest.raises(openai.NotFoundError):
        openai_client.embeddings.create(model="no-such-model", input="Paris")
