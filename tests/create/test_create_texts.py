"""Templates, parameters and Modelfiles: checked when a model is made, and shown so that it can be
made again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from create_steps import make, refusal, upload
from live import Client, Daemon, chat_body, running, wait_until, write_fake_model

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("texts")
    with running(folder) as daemon:
        daemon.create("base", write_fake_model(folder / "base.gguf", {"echo": True}))
        yield daemon


def cli(daemon: Client, *arguments: str, stdin: str = "") -> str:
    """What the command writes to standard output; it must succeed."""
    done = daemon.run_cli(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Prompt",
        "{{ if .System }}no end",
        "{{ nosuchfunction .Prompt }}",
        "{{ end }}",
        "{{ range }}{{ end }}",
        "{{ define }}",
        '{{ "unclosed }}',
    ],
)
def test_a_broken_template_is_refused(daemon: Daemon, template: str) -> None:
    error = refusal(daemon, **{"from": "base"}, template=template)
    assert error.startswith("template error: ")
    assert "/" not in error.split("template error: ")[1].replace(template, "")


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Prompt }}",
        '{{- range $i, $m := .Messages }}{{ if eq $m.Role "user" }}{{ $i }}{{ end }}{{ end }}',
        "{{ if and .System (not .Tools) }}{{ .System }}{{ else }}{{ json .Messages }}{{ end }}",
        "{{ currentDate }} {{ len .Messages }} {{ slice .Prompt 0 }}",
    ],
)
def test_a_good_template_is_stored(daemon: Daemon, template: str) -> None:
    make(daemon, "templated", **{"from": "base"}, template=template)
    assert daemon.json("POST", "/api/show", {"model": "templated"})["template"] == template


def test_a_template_that_never_compiles_is_refused_and_holds_up_nobody(daemon: Daemon) -> None:
    deep = "{{ if 1 }}" * 100_000
    assert refusal(daemon, **{"from": "base"}, template=deep).startswith("template error: ")
    assert daemon.chat("base", "hi")["message"]["content"] == "hi"


# Settings pages and variables hold text only.
LOSSLESS = {"num_ctx": "2048", "temperature": "0.3", "stop": "x", "top_k": 40.0, "seed": 1.0}


def test_numbers_that_come_as_text_are_stored_as_numbers(daemon: Daemon) -> None:
    make(daemon, "typed", **{"from": "base"}, parameters={**LOSSLESS, "mirostat": 1})
    text = daemon.json("POST", "/api/show", {"model": "typed"})["parameters"]
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines == {
        "num_ctx": "2048",
        "seed": "1",
        "stop": '"x"',
        "temperature": "0.3",
        "top_k": "40",
    }
    daemon.json("POST", "/api/generate", {"model": "base", "keep_alive": 0})
    wait_until(lambda: not daemon.ps(), "the base to go, whose runner would be shared")
    assert daemon.chat("typed", "abxcd")["message"]["content"] == "ab"
    (loaded,) = daemon.ps()
    assert loaded["context_length"] == 2048
    # The same values in a request.
    assert daemon.chat("base", "abxcd", **LOSSLESS)["message"]["content"] == "ab"


BAD_VALUES: dict[str, Any] = {
    "num_predict": "abc",
    "num_ctx": "12.5e",
    "temperature": True,
    "top_k": [1],
    "stop": {"a": 1},
    "seed": "one",
    "use_mmap": "perhaps",
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_what_run_would_refuse_is_refused_by_create(daemon: Daemon, name: str) -> None:
    options = {name: BAD_VALUES[name]}
    at_create = refusal(daemon, **{"from": "base"}, parameters=options)
    assert at_create.startswith(f"parameters.{name}: ")
    body = chat_body("base", "hi", stream=False, **options)
    at_run = daemon.json("POST", "/api/chat", body, status=400)["error"]
    assert at_run == at_create.replace("parameters.", "options.")


def test_a_version_that_is_none_and_a_draft_are_refused(daemon: Daemon) -> None:
    assert "such as 0.14.0" in refusal(daemon, **{"from": "base"}, requires="soon")
    draft = {"d.gguf": "sha256:" + "0" * 64}
    assert "speculative decoding" in refusal(daemon, **{"from": "base"}, draft_files=draft)


@pytest.mark.parametrize("name", ["../x", "/abs", "a\\b", "", "x/../../y", "nul\0"])
@pytest.mark.parametrize("field", ["files", "adapters"])
def test_a_file_name_cannot_leave_its_folder(daemon: Daemon, field: str, name: str) -> None:
    fields: dict[str, Any] = {field: {name: "sha256:" + "0" * 64}}
    if field == "adapters":
        fields["from"] = "base"
    assert refusal(daemon, **fields) == "file path must be relative"


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../x",
        "sha256-..%2fx",
        "sha256:" + "0" * 63,
        "sha256:" + "0" * 65,
        "sha256:" + "A" * 64,
        "sha512:" + "0" * 64,
        "",
    ],
)
def test_only_a_digest_is_a_digest(daemon: Daemon, digest: str) -> None:
    assert "invalid digest format" in refusal(daemon, files={"x.gguf": digest})
    assert "invalid digest format" in refusal(daemon, files={"x.safetensors": digest})
    adapters = refusal(daemon, **{"from": "base"}, adapters={"x": digest})
    assert "invalid digest format" in adapters


EVERYTHING = '''FROM {weights}
ADAPTER {adapter}
TEMPLATE """{{{{ .System }}}}
{{{{ range .Messages }}}}{{{{ .Role }}}}: "{{{{ .Content }}}}"
{{{{ end }}}}"""
SYSTEM """ Say "hi" in two
lines. """
RENDERER some-renderer
PARSER some-parser
REQUIRES 0.14.0
PARAMETER temperature 0.25
PARAMETER num_ctx 512
PARAMETER use_mmap false
PARAMETER stop "  two spaces"
PARAMETER stop <|im_end|>
PARAMETER tensor_split 1,2
LICENSE """MIT

with lines"""
LICENSE second
MESSAGE user What is "it"?
MESSAGE assistant """A
thing."""
'''


def layers_of(daemon: Daemon, model: str) -> list[tuple[str, str, int]]:
    folder = daemon.log_path.parent / "models" / "manifests"
    (path,) = folder.glob(f"*/*/{model}/latest")
    manifest = json.loads(path.read_bytes())
    layers = [*manifest["layers"], manifest["config"]]
    return [(layer["mediaType"], layer["digest"], layer["size"]) for layer in layers]


@pytest.mark.parametrize("in_place", [True, False])
def test_the_shown_modelfile_makes_the_same_model_again(
    start_daemon: Start,
    smollm2_parts: list[Path],
    adapters: dict[str, Path],
    tmp_path: Path,
    in_place: bool,
) -> None:
    daemon = start_daemon()
    modelfile = tmp_path / "Modelfile"
    text = EVERYTHING.format(weights=smollm2_parts[1], adapter=adapters["strong"])
    modelfile.write_text(text)
    flags = ["--in-place"] if in_place else []
    cli(daemon, "create", "first", "-f", str(modelfile), *flags)
    shown = cli(daemon, "show", "first", "--modelfile")
    cli(daemon, "create", "second", "-f", "-", stdin=shown)
    assert layers_of(daemon, "second") == layers_of(daemon, "first")
    media_types = [kind.rpartition(".")[2] for kind, _, _ in layers_of(daemon, "first")]
    assert sorted(media_types) == sorted(
        ["model"] * 3
        + ["adapter", "template", "system", "params", "messages", "license", "license"]
        + ["v1+json"]
    )
    again = cli(daemon, "show", "second", "--modelfile").replace("second:latest", "first:latest")
    assert again == shown
    blobs = daemon.log_path.parent / "models" / "blobs"
    n_links = sum(path.is_symlink() for path in blobs.iterdir())
    assert n_links == (3 if in_place else 0)


def test_the_shown_modelfile_of_one_file_uses_the_blob_that_is_there(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("first", fake_model(pieces=["ok"]))
    shown = cli(daemon, "show", "first", "--modelfile")
    cli(daemon, "create", "second", "-f", "-", stdin=shown)
    assert layers_of(daemon, "second") == layers_of(daemon, "first")
    assert daemon.chat("second", "hi")["message"]["content"] == "ok"


def test_a_model_is_shown_as_it_would_be_with_other_texts(daemon: Daemon) -> None:
    make(daemon, "plain", **{"from": "base"}, system="Be kind.", parameters={"top_k": 3})
    body = {"model": "plain", "system": "Be brief.", "options": {"top_k": "5", "seed": 1, "x": 1}}
    shown = daemon.json("POST", "/api/show", body)
    assert shown["system"] == "Be brief."
    assert shown["parameters"].split() == ["seed", "1", "top_k", "5"]
    assert "SYSTEM Be brief." in shown["modelfile"]
    assert "PARAMETER top_k 5" in shown["modelfile"]
    assert daemon.json("POST", "/api/show", {"model": "plain"})["system"] == "Be kind."
    body["options"] = {"top_k": "many"}
    assert "top_k" in daemon.json("POST", "/api/show", body, status=400)["error"]


def test_every_part_of_a_model_can_be_shown_alone(daemon: Daemon) -> None:
    make(
        daemon,
        "parts",
        **{"from": "base"},
        template="{{ .Prompt }}!",
        system="Be kind.",
        license=["MIT", "more"],
        parameters={"top_k": 3},
        requires="0.14.0",
    )
    assert cli(daemon, "show", "parts", "--template") == "{{ .Prompt }}!\n"
    assert cli(daemon, "show", "parts", "--system") == "Be kind.\n"
    assert cli(daemon, "show", "parts", "--license") == "MIT\nmore\n"
    assert cli(daemon, "show", "parts", "--parameters").split() == ["top_k", "3"]
    overview = cli(daemon, "show", "parts")
    assert [line for line in overview.splitlines() if line.split()[:1] == ["requires"]]


def test_an_upload_of_every_kind_is_a_blob_once(daemon: Daemon, fake_model: Fake) -> None:
    path = fake_model(pieces=["ok"])
    digest = upload(daemon, path)
    make(daemon, "one", files={"model.gguf": digest})
    make(daemon, "two", files={"model": digest})
    assert daemon.chat("two", "hi")["message"]["content"] == "ok"
