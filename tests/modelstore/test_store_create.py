"""Making models: what is stored, what is inherited, and what is reported on the way."""

import os
import threading
from pathlib import Path

import pytest

from modelstore.create import CreateRequest, Progress, create
from modelstore.digest import Digest
from modelstore.errors import (
    ChangedFile,
    InvalidCreate,
)
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.model_maker import checked, make, upload, variant, write_lora


def test_an_uploaded_file_becomes_a_model(store: Store, gguf_path: Path) -> None:
    digest = upload(store, gguf_path)
    lines = make(store, files={"tiny.gguf": digest})
    record = store.resolve("m")
    assert [line.status for line in lines] == [
        "parsing GGUF",
        f"using existing layer {digest.text}",
        f"creating new layer {record.manifest.config.digest.text}",
        "writing manifest",
        "warning: there is no chat template, so the model continues text instead of answering; "
        "a TEMPLATE changes that",
        "success",
    ]
    assert record.model_digest == digest
    config = record.config
    assert (config.model_format, config.model_family, config.model_families) == (
        "gguf",
        "llama",
        ("llama",),
    )
    assert (config.model_type, config.file_type) == ("288", "F16")
    assert (config.context_length, config.embedding_length) == (2048, 32)
    assert store.blobs.path(digest).read_bytes() == gguf_path.read_bytes()


def test_all_texts_and_parameters_are_stored(store: Store, gguf_path: Path) -> None:
    make(
        store,
        path=gguf_path,
        template="{{ .Prompt }}",
        system="Be kind.",
        licenses=("MIT", "more"),
        parameters={"temperature": 0.5, "stop": ["<a>"]},
        messages=({"role": "user", "content": "hi"},),
        renderer="r",
        parser="p",
        requires="0.9",
    )
    record = store.resolve("m")
    assert record.template == "{{ .Prompt }}"
    assert record.system == "Be kind."
    assert record.licenses == ("MIT", "more")
    assert record.parameters == {"temperature": 0.5, "stop": ["<a>"]}
    assert record.messages == ({"role": "user", "content": "hi"},)
    assert (record.config.renderer, record.config.parser, record.config.requires) == (
        "r",
        "p",
        "0.9",
    )


def test_a_model_inherits_replaces_merges_and_appends(store: Store, gguf_path: Path) -> None:
    make(
        store,
        "Base:v1",
        path=gguf_path,
        template="old",
        system="old",
        licenses=("first",),
        parameters={"temperature": 0.5, "top_k": 3},
        messages=({"role": "user", "content": "old"},),
        parser="p",
    )
    base = store.resolve("base:v1")
    make(
        store,
        "child",
        from_="base:v1",
        template="new",
        licenses=("second",),
        parameters={"temperature": 0.9},
        messages=({"role": "user", "content": "new"},),
    )
    child = store.resolve("child")
    assert child.model_digest == base.model_digest
    assert child.parent_model == "Base:v1"
    assert (child.template, child.system) == ("new", "old")
    assert child.licenses == ("first", "second")
    assert child.parameters == {"temperature": 0.9, "top_k": 3}
    assert child.messages == ({"role": "user", "content": "new"},)
    assert child.config.parser == "p"
    assert store.resolve("base:v1") == base


def test_empty_texts_leave_what_is_inherited(store: Store, gguf_path: Path) -> None:
    make(store, "base", path=gguf_path, template="t", system="s")
    make(store, "child", from_="base", template="", system="")
    child = store.resolve("child")
    assert (child.template, child.system) == ("t", "s")


def test_making_the_same_model_again_gives_the_same_digest(store: Store, gguf_path: Path) -> None:
    make(store, path=gguf_path, licenses=("MIT",), parameters={"top_k": 1, "min_p": 0.1})
    first = store.resolve("m").digest
    make(store, path=gguf_path, licenses=("MIT",), parameters={"min_p": 0.1, "top_k": 1})
    assert store.resolve("m").digest == first
    lines = make(store, from_="m", licenses=("MIT",))
    assert store.resolve("m").licenses == ("MIT",)
    assert all("creating" not in line.status for line in lines)


def test_a_model_made_anew_releases_the_old_weights(
    store: Store, gguf_path: Path, tmp_path: Path
) -> None:
    make(store, path=gguf_path)
    old = store.resolve("m").model_digest
    make(store, path=variant(tmp_path, general__name="Other"))
    assert old is not None
    assert not store.blobs.exists(old)


def test_copying_a_file_reports_its_progress(store: Store, gguf_path: Path) -> None:
    lines = make(store, path=gguf_path)
    size_bytes = gguf_path.stat().st_size
    assert Progress("copying Tiny Model.gguf", total=size_bytes, completed=size_bytes) in lines
    digest = store.resolve("m").model_digest
    assert digest is not None
    assert Progress(f"creating new layer {digest.text}") in lines
    gguf_path.unlink()
    store.check_files(store.resolve("m"))


def test_a_file_can_be_used_where_it_is(store: Store, gguf_path: Path) -> None:
    lines = make(store, path=gguf_path, in_place=True)
    assert lines[1].status == "hashing Tiny Model.gguf"
    record = store.resolve("m")
    assert record.model_path is not None
    assert record.model_path.is_symlink()
    store.check_files(record)
    write_gguf(gguf_path, tiny_metadata(), tiny_tensors(fill=1))
    os.utime(gguf_path, ns=(1, 1))
    with pytest.raises(ChangedFile):
        store.check_files(record)
    make(store, "again", path=gguf_path, in_place=True)
    store.check_files(store.resolve("again"))
    store.delete("m")
    store.delete("again")
    assert gguf_path.exists()
    assert os.listdir(store.blobs.folder) == []


@pytest.mark.parametrize(
    ("kind", "role", "paths"),
    [("adapter", "lora.gguf", "adapter_paths"), ("mmproj", "mmproj.gguf", "projector_paths")],
)
def test_files_find_their_role(
    store: Store, gguf_path: Path, tmp_path: Path, kind: str, role: str, paths: str
) -> None:
    path = variant(tmp_path, general__type=kind, general__architecture="clip")
    other = upload(store, write_lora(tmp_path / role) if kind == "adapter" else path)
    make(store, files={role: other, "model.gguf": upload(store, gguf_path)})
    record = store.resolve("m")
    assert getattr(record, paths) == (store.blobs.path(other),)
    assert record.model_digest == Digest.of(gguf_path.read_bytes())
    assert record.config.model_family == "llama"
    families = ("llama", "clip") if kind == "mmproj" else ("llama",)
    assert record.config.model_families == families


def test_an_adapter_joins_a_model(store: Store, gguf_path: Path, tmp_path: Path) -> None:
    make(store, "base", path=gguf_path)
    adapter = upload(store, write_lora(tmp_path / "lora.gguf"))
    make(store, "child", from_="base", adapters={"lora.gguf": adapter})
    assert store.resolve("child").adapter_paths == (store.blobs.path(adapter),)
    with pytest.raises(InvalidCreate, match="only one adapter"):
        make(store, from_="base", adapters={"a": adapter, "b": adapter})
    with pytest.raises(InvalidCreate, match="not a GGUF adapter"):
        make(store, from_="base", adapters={"a": Digest.of(gguf_path.read_bytes())})


def test_the_magic_counts_where_the_suffix_is_missing(store: Store, gguf_path: Path) -> None:
    make(store, files={"model": upload(store, gguf_path)})
    assert store.resolve("m").config.model_family == "llama"


def test_whoever_stops_listening_cancels(store: Store, gguf_path: Path) -> None:
    progress = create(store, CreateRequest("m", path=gguf_path), check_parameters=checked)
    next(progress)
    next(progress)
    progress.close()  # type: ignore[attr-defined]
    assert store.list() == []
    assert os.listdir(store.blobs.folder) == []


def test_many_threads_make_and_remove_models_that_share_blobs(
    store: Store, gguf_path: Path
) -> None:
    make(store, "base", path=gguf_path)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(6):
                make(store, f"m{number}", from_="base", system=f"round {round_}")
                assert store.resolve(f"m{number}").system == f"round {round_}"
            store.delete(f"m{number}")
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    needed = {digest.file_name for digest in store.resolve("base").manifest.digests}
    assert set(os.listdir(store.blobs.folder)) == needed


def test_a_real_model_is_registered_in_place(store: Store, smollm2_path: Path) -> None:
    make(store, "smollm2:135m", path=smollm2_path, in_place=True)
    config = store.resolve("smollm2:135m").config
    assert (config.model_family, config.model_type, config.file_type) == (
        "llama",
        "134.52M",
        "Q4_1",
    )


def test_a_file_whose_copy_is_stored_is_not_used_in_place_and_that_is_said(
    store: Store, gguf_path: Path
) -> None:
    assert not any("in place" in line.status for line in make(store, "m", path=gguf_path))
    (line,) = (
        line
        for line in make(store, "n", path=gguf_path, in_place=True)
        if "in place" in line.status
    )
    assert line.status.startswith("warning: `Tiny Model.gguf` is not used in place")
