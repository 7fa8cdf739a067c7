"""Model names: grammar, defaults, display, and that no name can leave its folder."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelstore.errors import InvalidName
from modelstore.names import DEFAULT_HOST, ModelName

_FIRST = string.ascii_letters + string.digits + "_"


def _part(extra: str, longest: int) -> st.SearchStrategy[str]:
    rest = st.text(_FIRST + extra, max_size=longest - 1)
    return st.builds(lambda a, b: a + b, st.sampled_from(_FIRST), rest)


NAMES = st.builds(
    ModelName,
    host=_part("-.:", 350),
    namespace=_part("-", 80),
    model=_part("-.", 80),
    tag=_part("-.", 80),
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("m", (DEFAULT_HOST, "library", "m", "latest")),
        ("llama3.2:1b", (DEFAULT_HOST, "library", "llama3.2", "1b")),
        ("user/m", (DEFAULT_HOST, "user", "m", "latest")),
        ("hf.co/u/r.gguf:Q4_K_M", ("hf.co", "u", "r.gguf", "Q4_K_M")),
        ("host:5000/u/m", ("host:5000", "u", "m", "latest")),
        ("https://hf.co/u/r:x", ("hf.co", "u", "r", "x")),
        ("  m:t\n", (DEFAULT_HOST, "library", "m", "t")),
        ("_m:_t", (DEFAULT_HOST, "library", "_m", "_t")),
    ],
)
def test_missing_parts_get_their_defaults(text: str, parts: tuple[str, ...]) -> None:
    assert ModelName.parse(text).parts == parts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("m", "m:latest"),
        ("library/m:7b", "m:7b"),
        ("user/m:7b", "user/m:7b"),
        ("hf.co/u/r:Q4_K_M", "hf.co/u/r:Q4_K_M"),
        ("hf.co/library/r", "hf.co/library/r:latest"),
        ("MyTiny:Q4", "MyTiny:Q4"),
    ],
)
def test_the_display_form_is_the_shortest_and_shows_the_tag(text: str, shown: str) -> None:
    assert ModelName.parse(text).display() == shown


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "name is empty"),
        ("   ", "name is empty"),
        ("a//b", "namespace is empty"),
        ("a/", "model is empty"),
        (":tag", "model is empty"),
        ("name:", "tag is empty"),
        ("../x", "namespace must start"),
        ("..", "model must start"),
        (".hidden", "model must start"),
        ("m:..", "tag must start"),
        ("a/b/../c", "more than host"),
        ("http://x/y/", "model is empty"),
        ("http:///y/m", "host is empty"),
        ("x" * 81, "model is longer than 80"),
        ("x" * 300, "model is longer than 80"),
        ("m:" + "t" * 81, "tag is longer than 80"),
        ("n" * 81 + "/m", "namespace is longer than 80"),
        ("h" * 351 + "/n/m", "host is longer than 350"),
        ("two words", "model has a character"),
        ("emoji😀", "model has a character"),
        ("naïve", "model has a character"),
        ("nul\0", "model has a character"),
        ("m\\x", "model has a character"),
        ("a.b/m", "namespace has a character"),
        ("m@sha256:abc", "digests"),
        ("-m", "model must start"),
        ("m:a:b", "model has a character"),
        ("m\n:t", "model has a character"),
        ("\ud800", "model"),
    ],
)
def test_an_invalid_name_is_refused_naming_the_part(text: str, part: str) -> None:
    with pytest.raises(InvalidName) as caught:
        ModelName.parse(text)
    assert part in caught.value.problem
    assert len(str(caught.value)) < 250


@given(NAMES)
def test_full_and_display_parse_back(name: ModelName) -> None:
    assert ModelName.parse(name.full()) == name
    assert ModelName.parse(name.display()) == name


@given(st.text(max_size=60) | st.text("./:\\aA_-~@ ", max_size=20))
def test_no_text_makes_a_part_that_could_leave_its_folder(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except InvalidName:
        return
    for part in name.parts:
        assert part
        assert not part.startswith(".")
        assert not set(part) & set("/\\\0")
