"""Published chat templates, from llama.cpp's own collection, and the reference way to render them.

The sdist of llama-cpp-python brings the collection along; pip fetches it once per machine.
"""

import datetime
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import filelock
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import platformdirs
import pytest

_SDIST = "llama-cpp-python==0.3.36"
_FOLDER = "vendor/llama.cpp/models/templates/"
_LIMIT_S = 300
# Read at once: a test gets a cache folder of its own.
_CACHE = Path(platformdirs.user_cache_dir("localrun", appauthor=False))


def published_templates() -> dict[str, str]:
    """Sources by name. Skips the test where they cannot be had."""
    top = Path(os.environ.get("LOCALRUN_TEST_MODELS", _CACHE / "test-models"))
    folder = top / f"chat-templates-{_SDIST.rpartition('=')[2]}"
    top.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            try:
                _download(folder)
            except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
                pytest.skip(f"the sdist of {_SDIST} cannot be fetched: {error}")
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run(
            [*pip, "--no-binary", ":all:", "--dest", scratch, _SDIST],
            check=True,
            capture_output=True,
            timeout=_LIMIT_S,
        )
        (sdist,) = Path(scratch).glob("*.tar.gz")
        found = Path(scratch) / "templates"
        found.mkdir()
        with tarfile.open(sdist) as archive:
            for member in archive:
                if _FOLDER in member.name and member.name.endswith(".jinja"):
                    content = archive.extractfile(member)
                    assert content is not None
                    (found / Path(member.name).name).write_bytes(content.read())
        found.rename(folder)


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        number = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(number)

    def _render(self, caller: Any) -> str:
        return str(caller())


def _raise(problem: str) -> str:
    raise jinja2.exceptions.TemplateError(problem)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def reference(source: str, messages: list[dict[str, Any]]) -> str:
    """The prompt as transformers' `apply_chat_template` makes it, with nothing about tools."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source).render(
        messages=messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=True
    )
