"""What can be pulled: names, URLs, and what is refused before anything goes to the network."""

import pytest

from modelstore.errors import InvalidName
from modelstore.names import ModelName
from modelstore.pull_names import GgufUrl, parse_pull


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("m", "registry.ollama.ai/library/m:latest"),
        ("hf.co/user/repo", "hf.co/user/repo:latest"),
        ("hf.co/us.er/re.po:Q4_K_M", "hf.co/us.er/re.po:Q4_K_M"),
        ("huggingface.co/us.er/r:m-Q4_0.gguf", "huggingface.co/us.er/r:m-Q4_0.gguf"),
        ("https://hf.co/u/r:Q8_0", "hf.co/u/r:Q8_0"),
        ("127.0.0.1:5000/u/m:t", "127.0.0.1:5000/u/m:t"),
        ("m:7b:local", "registry.ollama.ai/library/m:7b"),
        ("host/u/m:local", "host/u/m:local"),
        ("host/u/m:20b-cloud", "host/u/m:20b-cloud"),
    ],
)
def test_a_name(text: str, full: str) -> None:
    name = parse_pull(text)
    assert isinstance(name, ModelName)
    assert name.full() == full


@pytest.mark.parametrize(
    ("text", "model", "files"),
    [
        ("https://host/a/b/My-Model_Q4.gguf", "My-Model_Q4", ["My-Model_Q4.gguf"]),
        ("http://host:81/x.GGUF?download=true", "x", ["x.gguf"]),
        ("https://host/odd%20n%C3%A4me+1.gguf", "odd-n-me-1", ["odd-n-me-1.gguf"]),
        ("https://host/..hidden.gguf", "hidden", ["hidden.gguf"]),
        ("https://host/a%5Cb%00%2e%2e%2Fc.gguf", "a-b-..-c", ["a-b-..-c.gguf"]),
        (
            "https://host/m-00002-of-00003.gguf",
            "m",
            [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)],
        ),
    ],
)
def test_a_url(text: str, model: str, files: list[str]) -> None:
    found = parse_pull(text)
    assert isinstance(found, GgufUrl)
    assert (found.name.model, found.name.tag, list(found.files)) == (model, "latest", files)
    assert len(found.urls) == len(files)
    assert all(url.startswith(text[: text.index("/", 8)]) for url in found.urls)


def test_a_query_belongs_to_every_part() -> None:
    found = parse_pull("https://host/m-00001-of-00002.gguf?key=1#top")
    assert isinstance(found, GgufUrl)
    assert found.urls == (
        "https://host/m-00001-of-00002.gguf?key=1",
        "https://host/m-00002-of-00002.gguf?key=1",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "name is empty"),
        ("a//b", "namespace is empty"),
        (":tag", "model is empty"),
        ("name:", "tag is empty"),
        ("../x", "namespace must start"),
        ("http://x/y", "host, namespace and model"),
        ("https://y", "host, namespace and model"),
        ("x" * 300, "longer than 80"),
        ("two words", "model has a character"),
        ("emoji😀", "model has a character"),
        ("nul\0", "model has a character"),
        ("a/b/", "model is empty"),
        ("/etc/passwd", "host is empty"),
        ("us.er/repo", "namespace has a character"),
        ("m@sha256:abc", "digests"),
        ("gpt-oss:120b-cloud", "need an account"),
        ("m:cloud", "need an account"),
        ("m:20b:cloud", "need an account"),
        ("user:secret@host/u/m", "does not belong"),
        ("https://user:secret@host/x.gguf", "does not belong"),
        ("https:///x.gguf", "no usable host"),
        ("https://host:99999/x.gguf", "no usable host"),
        ("https://host/a b.gguf", "printable ASCII"),
        ("https://host/---.gguf", "no model name"),
        ("https://host/m-00004-of-00003.gguf", "not a part"),
        ("https://host/m-00001-of-09999.gguf", "not a part"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_pull(text)
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)
