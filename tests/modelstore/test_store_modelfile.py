"""Modelfiles: the grammar, the line numbers, and the way there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelstore.errors import ModelfileSyntax, UnsupportedFormat
from modelstore.modelfile import (
    ROLES,
    Modelfile,
    decode,
    expressible,
    is_expressible,
    parse,
    render,
)


def test_every_instruction_finds_its_place() -> None:
    modelfile = parse(
        """# a comment
FROM ./model.gguf
from other
  ADAPTER ./lora.gguf
PARAMETER temperature 0.5
PARAMETER stop <a>
PARAMETER stop "<b> "
TEMPLATE \"\"\"{{ .System }}
{{ .Prompt }}\"\"\"
SYSTEM You are # kind
LICENSE MIT
LICENSE \"\"\"
more
\"\"\"
MESSAGE user hi
MESSAGE assistant "hello
there"
DRAFT ./draft.gguf
RENDERER r
PARSER p
REQUIRES v0.9.1
"""
    )
    assert modelfile == Modelfile(
        froms=("./model.gguf", "other"),
        adapters=("./lora.gguf",),
        parameters=(("temperature", "0.5"), ("stop", "<a>"), ("stop", "<b> ")),
        template="{{ .System }}\n{{ .Prompt }}",
        system="You are # kind",
        licenses=("MIT", "\nmore\n"),
        messages=(("user", "hi"), ("assistant", "hello\nthere")),
        drafts=("./draft.gguf",),
        renderer="r",
        parser="p",
        requires="v0.9.1",
    )
    assert modelfile.merged_parameters() == {"temperature": "0.5", "stop": ["<a>", "<b> "]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("  plain  ", "plain"),
        ('"quoted "', "quoted "),
        ("'single'", "'single'"),
        ('""', ""),
        ('""""""', ""),
        (" ", ""),
        ('"a "b" c"', 'a "b" c'),
        ('"""a"b"""', 'a"b'),
        ('""""a""""', '"a"'),
        ('say "x"', 'say "x"'),
        ('"a" b\nc"', 'a" b\nc'),
        ('"""\n"""', "\n"),
        ('"""a""\nb"""', 'a""\nb'),
        ('"a\n\n  b  "  ', "a\n\n  b  "),
        ("a\u00a0b\u200b", "ab"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_values_are_unquoted_by_the_reference_rules(value: str, text: str) -> None:
    assert parse(f"FROM m\nSYSTEM {value}\n").system == text
    assert parse(f"FROM m\nSYSTEM {value}").system == text
    assert parse(f"FROM m\nSYSTEM {value}\nLICENSE after\n").licenses == ("after",)


def test_of_repeated_single_instructions_the_last_counts() -> None:
    modelfile = parse("FROM a\nSYSTEM one\nSYSTEM two\nTEMPLATE x\nTEMPLATE y\nPARAMETER a 1\n")
    assert (modelfile.system, modelfile.template) == ("two", "y")
    assert parse("FROM a\nPARAMETER k 1\nPARAMETER k 2").merged_parameters() == {"k": "2"}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "no FROM line"),
        ("# nothing\n\nSYSTEM x\n", 4, "no FROM line"),
        ("FROM a\nNONSENSE x\n", 2, "the command must be one of from, license"),
        ("FROM a\n\n# c\nTEMPLATE", 4, "TEMPLATE needs a value"),
        ("FROM\nx", 1, "FROM needs a value"),
        ('FROM ""', 1, "FROM needs a model name"),
        ("FROM a\nSYSTEM: x", 2, "the command must be"),
        ("FROM a\n123", 2, "the command must be"),
        ("FROM a\nPARAMETER", 2, "PARAMETER needs a value"),
        ("FROM a\nPARAMETER stop", 2, "PARAMETER stop needs a value"),
        ("FROM a\nPARAMETER num-ctx 3", 2, "letters, digits and `_`"),
        ("FROM a\nMESSAGE robot hi", 2, "role must be one of system, user, assistant"),
        ("FROM a\nMESSAGE User hi", 2, "role must be one of"),
        ('FROM a\nSYSTEM "never\nends\n', 2, "unexpected EOF"),
        ('FROM a\nSYSTEM """never" ""\n', 2, "unexpected EOF"),
        ('FROM a\nSYSTEM """two\nlines"""\nBAD x', 4, "the command must be"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_errors_name_the_line_whatever_ends_the_lines(
    text: str, line: int, problem: str, newline: str
) -> None:
    with pytest.raises(ModelfileSyntax) as caught:
        parse(text.replace("\n", newline))
    assert caught.value.line == line
    assert problem in str(caught.value)


def test_crlf_reads_like_lf() -> None:
    text = 'FROM a\nSYSTEM """x\ny"""\nPARAMETER stop z\n'
    assert parse(text.replace("\n", "\r\n")) == parse(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_with_a_byte_order_mark_is_decoded(encoding: str) -> None:
    assert parse(decode("FROM m\nSYSTEM é\n".encode(encoding))).system == "é"


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(ModelfileSyntax, match="line 2: the file is not UTF-8"):
        decode(b"FROM a\nSYSTEM \xff\xfe\n")


TEXTS = st.text(max_size=40) | st.text('"\n ax\t', max_size=14)
EXPRESSIBLE = TEXTS.filter(is_expressible)
MODELFILES = st.builds(
    Modelfile,
    froms=st.lists(EXPRESSIBLE.filter(bool), min_size=1, max_size=2).map(tuple),
    parameters=st.lists(
        st.tuples(st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True), EXPRESSIBLE), max_size=3
    ).map(tuple),
    template=st.none() | EXPRESSIBLE,
    system=st.none() | EXPRESSIBLE,
    adapters=st.lists(EXPRESSIBLE, max_size=2).map(tuple),
    licenses=st.lists(EXPRESSIBLE, max_size=2).map(tuple),
    messages=st.lists(st.tuples(st.sampled_from(ROLES), EXPRESSIBLE), max_size=3).map(tuple),
    drafts=st.lists(EXPRESSIBLE, max_size=1).map(tuple),
    renderer=st.none() | EXPRESSIBLE,
    parser=st.none() | EXPRESSIBLE,
    requires=st.none() | EXPRESSIBLE,
)


@given(MODELFILES)
def test_what_is_rendered_parses_back(modelfile: Modelfile) -> None:
    assert parse(render(modelfile)) == modelfile


@given(TEXTS)
def test_every_text_has_an_expressible_neighbour(text: str) -> None:
    assert is_expressible(expressible(text))
    if is_expressible(text):
        assert expressible(text) == text


@given(st.text('"\n aFROMSYTE', max_size=60))
def test_any_text_parses_or_is_a_syntax_error(text: str) -> None:
    try:
        modelfile = parse("FROM m\nSYSTEM " + text)
    except ModelfileSyntax:
        return
    assert parse(render(modelfile)) == modelfile


@pytest.mark.parametrize("text", ['a"""\nb', "bell\a", "carriage\rreturn"])
def test_a_text_that_the_grammar_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedFormat, match="cannot be written in a Modelfile"):
        render(Modelfile(froms=("m",), system=text))


def test_plain_values_are_written_without_quotes() -> None:
    text = render(Modelfile(froms=("m",), system="Be kind.", parameters=(("stop", " x"),)))
    assert text == 'FROM m\nSYSTEM Be kind.\nPARAMETER stop " x"\n'


def test_a_long_quoted_text_is_read_in_linear_time() -> None:
    body = "\n".join(['a line with "quotes" in it'] * 50_000)
    assert parse(f'FROM m\nLICENSE """{body}"""\n').licenses == (body,)
