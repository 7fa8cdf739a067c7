"""Files at URLs become models."""

import os
from pathlib import Path

import pytest
from pull_client import Make, Start, daemon_blobs, names, pulled, refusal
from registry_servers import Nginx, digest_of


@pytest.mark.parametrize("rules", ["", "max_ranges 0;", "limit_rate 2m;"])
def test_a_file_at_a_url_becomes_a_model(
    start_daemon: Start, tmp_path: Path, gguf: Make, rules: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    data = gguf(3_000_000, pieces=["from a file"])
    (files / "My Model.gguf").write_bytes(data)
    nginx = Nginx(files, tmp_path / "nginx", rules=rules)
    try:
        daemon = start_daemon(REGISTRIES=f"http://{nginx.host}")
        lines = pulled(daemon, f"http://{nginx.host}/My%20Model.gguf")
        assert names(daemon) == ["My-Model:latest"]
        assert {line["total"] for line in lines if "total" in line} == {len(data)}
        assert daemon.chat("My-Model", "hi")["message"]["content"] == "from a file"
        blobs = os.listdir(daemon_blobs(daemon))
        assert digest_of(data).replace(":", "-") in blobs
        assert not any("partial" in name for name in blobs)
    finally:
        nginx.kill()


def test_a_file_behind_a_redirect_and_one_that_is_a_page(
    start_daemon: Start, tmp_path: Path, gguf: Make
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "m.gguf").write_bytes(gguf(100_000))
    (files / "page.gguf").write_text("<!DOCTYPE html><html>" + "secret " * 1000)
    (files / "text.gguf").write_text("secret " * 1000)
    nginx = Nginx(files, tmp_path / "nginx")
    moved = Nginx(
        files, tmp_path / "moved", rules=f"location / {{ return 302 http://{nginx.host}$uri; }}"
    )
    try:
        daemon = start_daemon(REGISTRIES=f"http://{moved.host},http://{nginx.host}")
        pulled(daemon, f"http://{moved.host}/m.gguf")
        for name in ("text.gguf", "missing.gguf"):
            status, error = refusal(daemon, f"http://{moved.host}/{name}")
            assert status in (400, 502), error
            assert "secret" not in error
        assert names(daemon) == ["m:latest"]
        assert len(os.listdir(daemon_blobs(daemon))) == 2
        elsewhere = start_daemon(MODELS=tmp_path / "other", REGISTRIES=f"http://{moved.host}")
        assert refusal(elsewhere, f"http://{moved.host}/m.gguf")[0] == 403
    finally:
        nginx.kill()
        moved.kill()
