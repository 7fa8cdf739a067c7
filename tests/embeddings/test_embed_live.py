"""Vectors from a live daemon with real models, on every route that gives them."""

import base64
import json
import math
import random
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import Daemon, wait_until

from localrun.core import Vectors

Vector = list[float]

# The smallest cosine that counts as equal.
EQUAL = 0.9999

WORDS = ("the", "quick", "brown", "fox", "over", "a", "lazy", "dog", "near", "some", "river")


def texts(n: int, longest: int, seed: int = 0) -> list[str]:
    """`n` texts of 1 to `longest` words, some of them equal."""
    chance = random.Random(seed)
    made = [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(n)]
    made[-1] = made[0]
    return made


def embed(daemon: Daemon, given: Any, model: str = "minilm", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "input": given, **fields}
    reply: dict[str, Any] = daemon.json("POST", "/api/embed", body)
    return reply


def vectors(daemon: Daemon, given: Sequence[str], model: str = "minilm") -> list[Vector]:
    found: list[Vector] = embed(daemon, list(given), model)["embeddings"]
    assert len(found) == len(given)
    return found


def cosine(one: Vector, other: Vector) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def test_a_known_model_gives_its_known_vectors(vectors_daemon: Daemon) -> None:
    """Figures: the model's own page, for its weights in 32 bits."""
    first, *others = vectors(
        vectors_daemon,
        [
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        ],
    )
    assert [cosine(first, other) for other in others] == pytest.approx(
        [0.695, 0.943, 0.257], abs=0.001
    )
    (example,) = vectors(vectors_daemon, ["This is an example sentence"])
    assert example[:4] == pytest.approx([0.0676, 0.0635, 0.0487, 0.0792], abs=0.0005)


@pytest.mark.parametrize(("model", "n", "longest"), [("minilm", 32, 400), ("smol", 12, 60)])
def test_a_text_has_one_vector_in_any_company(
    vectors_daemon: Daemon, model: str, n: int, longest: int
) -> None:
    given = texts(n, longest)
    alone = [vectors(vectors_daemon, [text], model)[0] for text in given]
    together = vectors(vectors_daemon, given, model)
    backwards = vectors(vectors_daemon, given[::-1], model)[::-1]
    in_sevens = [
        vector
        for at in range(0, n, 7)
        for vector in vectors(vectors_daemon, given[at : at + 7], model)
    ]
    with ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(lambda text: vectors(vectors_daemon, [text], model)[0], given))
    for other in (together, backwards, in_sevens, at_once):
        assert min(map(cosine, alone, other)) >= EQUAL
    assert together[0] == together[-1]
    assert all(cosine(vector, vector) == pytest.approx(1) for vector in together)
    assert all(sum(x * x for x in vector) == pytest.approx(1, abs=1e-4) for vector in together)


def test_a_vector_is_the_same_beside_running_answers(vectors_daemon: Daemon) -> None:
    given = texts(4, 120, seed=1)
    before = vectors(vectors_daemon, given, "smol")
    body = {"model": "smol", "prompt": "Count to 1000", "options": {"num_predict": 120}}
    lines: list[dict[str, Any]] = []

    def read() -> None:
        lines.extend(vectors_daemon.stream("/api/generate", body))

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: vectors_daemon.n_busy(), "a running answer")
    beside = vectors(vectors_daemon, given, "smol")
    reader.join()
    assert min(map(cosine, before, beside)) >= EQUAL
    assert lines[-1]["done"]


@pytest.mark.parametrize("n_words", [500, 510, 511, 600, 5100])
def test_a_text_beyond_the_window_is_cut_and_says_so(vectors_daemon: Daemon, n_words: int) -> None:
    # A word is a token here, and two more stand around a text.
    n_tokens = min(512, n_words + 2)
    reply = embed(vectors_daemon, ["fox " * n_words, "short"])
    assert reply["prompt_eval_count"] == n_tokens + 3
    assert reply.get("truncated", False) == (n_words > 510)
    assert reply.get("prompt_dropped_count", 0) == max(0, n_words - 510)
    whole, short = reply["embeddings"]
    assert cosine(whole, vectors(vectors_daemon, ["fox " * min(510, n_words)])[0]) >= EQUAL
    assert cosine(short, vectors(vectors_daemon, ["short"])[0]) >= EQUAL


def test_words_behind_more_blanks_than_a_window_has_characters_count(
    vectors_daemon: Daemon,
) -> None:
    # Blanks have no tokens here.
    given = [" " * 140_000 + "fox", " " * 140_000]
    reply = embed(vectors_daemon, given, truncate=False)
    assert reply["prompt_eval_count"] == 3 + 2
    assert "truncated" not in reply
    assert reply["embeddings"] == vectors(vectors_daemon, ["fox", ""])


def test_what_is_left_out_of_equal_texts_counts_each_time(vectors_daemon: Daemon) -> None:
    body = {"model": "minilm", "input": ["hello " * 600, "fox", "hello " * 600]}
    reply = vectors_daemon.json("POST", "/api/embed", body)
    assert reply["prompt_dropped_count"] == 180


def test_a_text_beyond_the_window_is_refused_with_its_place_if_it_must_not_be_cut(
    vectors_daemon: Daemon,
) -> None:
    given = ["short"] * 300 + ["fox " * 511]
    body = {"model": "minilm", "input": given, "truncate": False}
    error = vectors_daemon.json("POST", "/api/embed", body, status=400)["error"]
    assert "input[300]" in error
    assert "513 tokens exceeds the context length of 512" in error
    embed(vectors_daemon, [*given[:-1], "fox " * 510], truncate=False)
    body = {"model": "minilm", "prompt": "fox " * 511}
    assert (
        "context length"
        in vectors_daemon.json("POST", "/api/embeddings", body, status=400)["error"]
    )


def test_a_long_text_of_a_model_for_text_goes_on_over_several_forwards(
    vectors_daemon: Daemon,
) -> None:
    reply = embed(vectors_daemon, ["fox " * 2000], "smol")
    assert (reply["prompt_eval_count"], reply["truncated"]) == (1024, True)
    short = embed(vectors_daemon, ["fox " * 100], "smol", options={"num_ctx": 64})
    assert (short["prompt_eval_count"], short["truncated"]) == (64, True)


@pytest.mark.parametrize("nothing", [None, "", []])
def test_nothing_only_loads_the_model(vectors_daemon: Daemon, nothing: Any) -> None:
    assert embed(vectors_daemon, nothing)["embeddings"] == []
    body = {"model": "minilm", "prompt": nothing or ""}
    assert vectors_daemon.json("POST", "/api/embeddings", body) == {"embedding": []}
    assert "minilm:latest" in [model["name"] for model in vectors_daemon.ps()]


@pytest.mark.parametrize("model", ["minilm", "smol"])
def test_an_empty_text_has_a_vector_of_its_own(vectors_daemon: Daemon, model: str) -> None:
    one, empty, blank = vectors(vectors_daemon, ["a", "", "  "], model)
    assert len(empty) == len(one) == len(blank)
    assert all(map(math.isfinite, empty))
    body = {"model": model, "input": "", "encoding_format": "float"}
    (row,) = vectors_daemon.json("POST", "/v1/embeddings", body)["data"]
    assert cosine(row["embedding"], empty) >= EQUAL


def test_thousands_of_texts_come_in_their_order(vectors_daemon: Daemon) -> None:
    given = [f"{n % 50} {WORDS[n % 7]}" for n in range(2000)]
    found = vectors(vectors_daemon, given)
    assert found[:350] == found[350:700]
    assert cosine(found[13], vectors(vectors_daemon, [given[13]])[0]) >= EQUAL


def test_fewer_numbers_are_the_first_ones_at_length_1(vectors_daemon: Daemon) -> None:
    (whole,) = vectors(vectors_daemon, ["fox"])
    (cut,) = embed(vectors_daemon, "fox", dimensions=64)["embeddings"]
    assert len(cut) == 64
    assert cosine(cut, whole[:64]) == pytest.approx(1)
    assert sum(x * x for x in cut) == pytest.approx(1)
    assert embed(vectors_daemon, "fox", dimensions=len(whole))["embeddings"] == [whole]


@pytest.mark.parametrize("dimensions", [0, 385, 2**40])
def test_natively_more_numbers_than_there_are_are_all_of_them(
    vectors_daemon: Daemon, dimensions: int
) -> None:
    (found,) = embed(vectors_daemon, "fox", dimensions=dimensions)["embeddings"]
    assert len(found) == 384


@pytest.mark.parametrize(
    ("path", "dimensions", "words"),
    [
        ("/v1/embeddings", 0, "must be at least 1"),
        ("/v1/embeddings", -1, "must be at least 1"),
        ("/v1/embeddings", 385, "must be at most 384"),
        ("/v1/embeddings", 2**40, "must be at most 384"),
        ("/v1/embeddings", True, "expected `int | null`, got `bool`"),
        ("/api/embed", -1, "must be at least 0"),
        ("/api/embed", True, "expected `int | null`, got `bool`"),
        ("/api/embed", "64", "expected `int | null`, got `str`"),
        ("/api/embed", 64.5, "expected `int | null`, got `float`"),
    ],
)
def test_a_length_that_a_vector_cannot_have_is_refused(
    vectors_daemon: Daemon, path: str, dimensions: Any, words: str
) -> None:
    body = {"model": "minilm", "input": ["a", "b"], "dimensions": dimensions}
    error = vectors_daemon.json("POST", path, body, status=400)["error"]
    if path.startswith("/v1"):
        assert error["param"] == "dimensions"
        error = error["message"]
    assert error.startswith(f"dimensions: {words}")


def words(n: int) -> str:
    """A text of so many tokens."""
    return " ".join(["fox"] * n)


@pytest.mark.parametrize(("model", "n_own"), [("minilm", 2), ("smol", 0)])
@pytest.mark.parametrize("num_ctx", [1, 2])
def test_a_window_smaller_than_any_text_keeps_its_first_token(
    vectors_daemon: Daemon, model: str, n_own: int, num_ctx: int
) -> None:
    n_tokens = max(num_ctx, n_own + 1)
    window = {"options": {"num_ctx": num_ctx}}
    reply = embed(vectors_daemon, [words(20), ""], model, **window)
    assert (reply["truncated"], reply["prompt_eval_count"]) == (True, n_tokens + max(n_own, 1))
    whole, empty = vectors(vectors_daemon, [words(n_tokens - n_own), ""], model)
    assert cosine(reply["embeddings"][0], whole) >= EQUAL
    assert cosine(reply["embeddings"][1], empty) >= EQUAL
    body = {"model": model, "input": [words(20)], "truncate": False, **window}
    error = vectors_daemon.json("POST", "/api/embed", body, status=400)["error"]
    assert f"exceeds the context length of {num_ctx}" in error


def test_openai_s_route_gives_the_same_numbers_in_both_encodings(vectors_daemon: Daemon) -> None:
    given = ["a fox", "a ship"]
    expected = vectors(vectors_daemon, given)
    body = {"model": "minilm", "input": given}
    plain = vectors_daemon.json("POST", "/v1/embeddings", body)
    coded = vectors_daemon.json("POST", "/v1/embeddings", body | {"encoding_format": "base64"})
    assert [row["embedding"] for row in plain["data"]] == expected
    decoded = [base64.b64decode(row["embedding"]) for row in coded["data"]]
    assert [list(struct.unpack("<384f", data)) for data in decoded] == expected
    assert [row["index"] for row in plain["data"]] == [0, 1]
    assert plain["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert (plain["object"], plain["model"]) == ("list", "minilm")
    (one,) = vectors_daemon.json("POST", "/v1/embeddings", body | {"input": "a fox"})["data"]
    assert cosine(one["embedding"], expected[0]) >= EQUAL


def test_the_older_route_has_one_vector(vectors_daemon: Daemon) -> None:
    reply = vectors_daemon.json("POST", "/api/embeddings", {"model": "minilm", "prompt": "a fox"})
    assert cosine(reply["embedding"], vectors(vectors_daemon, ["a fox"])[0]) >= EQUAL


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/embed", {"input": [1, 2]}, "input[0]: invalid input type"),
        ("/api/embed", {"input": 7}, "input: invalid input type"),
        ("/api/embeddings", {"prompt": "fox " * 600}, "prompt: "),
        ("/api/embed", {"input": ["a", None]}, "input[1]: invalid input type"),
        ("/v1/embeddings", {"input": None}, "invalid input"),
        ("/v1/embeddings", {"input": []}, "invalid input"),
        ("/v1/embeddings", {"input": [[1, 2]]}, "token ids are not available"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "Supported values"),
        ("/v1/rerank", {"documents": ["a"]}, "a text is required"),
        ("/v1/rerank", {"query": "a", "documents": []}, "a list of texts is required"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "does not support rerank"),
    ],
)
def test_what_means_nothing_is_refused_by_name(
    vectors_daemon: Daemon, path: str, body: dict[str, Any], words: str
) -> None:
    error = vectors_daemon.json("POST", path, {"model": "minilm", **body}, status=400)["error"]
    assert words in (error["message"] if path.startswith("/v1") else error)


def test_a_model_for_vectors_makes_no_text_and_one_for_ranks_no_vectors(
    vectors_daemon: Daemon,
) -> None:
    for path, body in (
        ("/api/generate", {"prompt": "a"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        error = vectors_daemon.json("POST", path, {"model": "minilm", **body}, status=400)["error"]
        assert error.startswith('"minilm" does not support')
    body = {"model": "rank", "input": "a"}
    error = vectors_daemon.json("POST", "/api/embed", body, status=400)["error"]
    assert error == '"rank" does not support embedding'
    body = {"model": "absent", "input": "a"}
    assert "not found" in vectors_daemon.json("POST", "/api/embed", body, status=404)["error"]


def test_documents_come_in_the_order_of_their_scores(vectors_daemon: Daemon) -> None:
    # The scripted model counts the tokens that end in three zero bits: the byte of `(`.
    body = {"model": "rank", "query": "((", "documents": ["none", "((((", {"text": "( ("}]}
    reply = vectors_daemon.json("POST", "/v1/rerank", body)
    ranked = [(row["index"], row["relevance_score"]) for row in reply["results"]]
    assert [index for index, _ in ranked] == [1, 2, 0]
    assert [score for _, score in ranked] == sorted((score for _, score in ranked), reverse=True)
    assert "document" not in reply["results"][0]
    more = {"top_n": 1, "return_documents": True}
    (best,) = vectors_daemon.json("POST", "/v1/rerank", body | more)["results"]
    assert (best["index"], best["document"]) == (1, {"text": "(((("})
    assert reply["usage"]["prompt_tokens"] > 0


def test_a_model_says_what_it_takes_for_vectors_too(vectors_daemon: Daemon) -> None:
    vectors_daemon.json("POST", "/api/generate", {"model": "smol", "keep_alive": 0})
    wait_until(lambda: not _row(vectors_daemon, "smol"), "the model to go")
    vectors_daemon.json("POST", "/api/generate", {"model": "smol"})
    before = _row(vectors_daemon, "smol")["size"]
    embed(vectors_daemon, "a", "smol")
    # 512 rows of 49,152 logits are 96 MiB.
    assert _row(vectors_daemon, "smol")["size"] - before > 90 << 20


def _row(daemon: Daemon, model: str) -> dict[str, Any]:
    return next((one for one in daemon.ps() if one["name"] == f"{model}:latest"), {})


def test_a_client_that_leaves_frees_the_model_for_the_next(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon()
    daemon.create("slow", fake_model(pooling="mean", is_causal=False, step_s=0.05, n_ctx_train=64))
    body = {"model": "slow", "input": [f"{n:060}" for n in range(2000)]}
    connection = daemon.connect()
    connection.request("POST", "/api/embed", json.dumps(body))
    wait_until(lambda: daemon.n_busy(), "texts in work")
    connection.close()
    wait_until(lambda: not daemon.n_busy(), "the end of the work")
    assert len(embed(daemon, ["a"], "slow")["embeddings"]) == 1


def test_texts_survive_a_runner_that_dies_once(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon()
    daemon.create("slow", fake_model(pooling="mean", is_causal=False, step_s=0.05, n_ctx_train=64))
    replies: list[dict[str, Any]] = []
    given = [f"{n:060}" for n in range(40)]
    asking = threading.Thread(target=lambda: replies.append(embed(daemon, given, "slow")))
    asking.start()
    wait_until(lambda: daemon.n_busy(), "texts in work")
    (runner,) = (p for p in psutil.Process(daemon.process.pid).children() if p.is_running())
    runner.kill()
    asking.join()
    assert len(replies[0]["embeddings"]) == 40


def test_vectors_without_a_text_have_no_bytes() -> None:
    assert Vectors().data == b""


def test_more_than_may_wait_are_told_when_to_come_back(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1, MAX_QUEUE=1)
    daemon.create("slow", fake_model(pooling="mean", is_causal=False, step_s=0.05, n_ctx_train=64))
    embed(daemon, None, "slow")  # a request that waits for a load is in the queue as well
    given = [f"{n:060}" for n in range(400)]
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(embed, daemon, given, "slow") for _ in range(2)]
        wait_until(lambda: any(model["queued"] for model in daemon.ps()), "a full queue")
        for path in ("/api/embed", "/v1/embeddings"):
            with daemon.open("POST", path, {"model": "slow", "input": "a"}) as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) > 0
                error = json.loads(response.read())["error"]
            text = error["message"] if path.startswith("/v1") else error
            assert text.startswith("server busy, please try again.")
        assert all(len(one.result()["embeddings"]) == 400 for one in working)
    assert len(embed(daemon, "a", "slow")["embeddings"]) == 1
