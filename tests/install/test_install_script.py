"""install.sh on machines that lack something: one sentence, an exit code, and nothing built.

The script runs with a PATH that holds only what a test puts there. A real installation takes
minutes and the network, so it is not part of the tests.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelstore.store import Store

SCRIPT = Path(__file__).parents[2] / "install.sh"
TOOLS = (
    "awk cat df dirname getconf grep id ln ls mkdir mktemp mv readlink rm rmdir sed sh sleep uname"
)


class Machine:
    """A home folder and a PATH of our own making."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.bin = root / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool} here"))

    def script(self, name: str, text: str) -> None:
        """Puts a program on PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def install(self, *argv: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(SCRIPT), *argv],
            env={
                "HOME": str(self.home),
                "PATH": str(self.bin),
                "TMPDIR": str(self.home),
                "LOCALRUN_INSTALL_BIN": str(self.home / "bin"),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def failure(self, *argv: str, **environ: str) -> str:
        """The one sentence of a run that fails."""
        result = self.install(*argv, **environ)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("install.sh: ")
        return line


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def python(machine: Machine) -> Machine:
    """A machine with this very Python."""
    machine.script("python3", f'exec "{sys.executable}" "$@"')
    return machine


def test_no_python(machine: Machine) -> None:
    assert "Python 3.11 or newer is needed and there is only no python3" in machine.failure()


def test_an_old_python(machine: Machine) -> None:
    machine.script("python3", 'case "$1" in --version) echo "Python 3.9.2" ;; *) exit 1 ;; esac')
    assert "only Python 3.9.2" in machine.failure()
    assert "is not a Python 3.11" in machine.failure("--python", str(machine.bin / "python3"))


def test_a_python_without_venv(machine: Machine) -> None:
    machine.script("python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert "python3 has no venv module; install it" in machine.failure()


def test_no_compiler(python: Machine) -> None:
    assert "a C and C++ compiler is needed" in python.failure()
    assert "CXX names clang++-99" in python.failure(CXX="clang++-99 -O2")


def test_a_full_disk(python: Machine) -> None:
    python.script("cc", "exit 0")
    python.script("c++", "exit 0")
    line = python.failure(LOCALRUN_INSTALL_MIN_DISK_MB="99999999")
    assert "99999999 MB are needed" in line
    assert str(python.home) in line


def build(machine: Machine, command: str) -> "subprocess.CompletedProcess[str]":
    """An installation whose build of llama.cpp is `command`, and then fails."""
    machine.script("c++", "exit 0")
    built = machine.home / "build.sh"
    built.write_text(f"#!/bin/sh\n{command}\nexit 1\n")
    built.chmod(0o755)
    # The environment of the build has that as its Python.
    machine.script(
        "python3",
        f'''[ "$2" = venv ] || exec "{sys.executable}" "$@"
mkdir -p "$3/bin"
ln -s "{built}" "$3/bin/python"''',
    )
    return machine.install(LOCALRUN_INSTALL_MIN_DISK_MB="0")


def test_a_long_build_shows_that_it_goes_on(python: Machine) -> None:
    (python.bin / "sleep").unlink()
    python.script("sleep", f"exec {shutil.which('sleep')} 0.01")
    result = build(python, f"{shutil.which('sleep')} 3")
    assert (result.returncode, "llama.cpp could not be built" in result.stderr) == (1, True)
    assert result.stdout.splitlines()[1:3] == [
        "still building: 0 min 30 s so far",
        "still building: 1 min 0 s so far",
    ]


def test_a_build_that_ends_at_once_is_not_waited_for() -> None:
    """A shell that was forked just now loses signals, so the two are started and stopped often."""
    lines = SCRIPT.read_text().splitlines()
    begin = lines.index(next(line for line in lines if line.startswith("start_ticking()")))
    end = lines.index("}", lines.index("stop_ticking() {"))
    script = [
        "set -eu; TICK_S=30; trap 'exit 130' INT TERM",
        *lines[begin : end + 1],
        "n=0; while [ $n -lt 300 ]; do ticker=; start_ticking; stop_ticking; n=$((n + 1)); done",
    ]
    subprocess.run(["sh", "-c", "\n".join(script)], check=True, timeout=30)


@pytest.mark.skipif(sys.platform != "linux", reason="only there the CPU says so in a file")
@pytest.mark.parametrize(
    ("vendor", "flags", "is_tuned"),
    [
        ("AuthenticAMD", "fma avx2 avx512f avx512_vnni", True),
        ("AuthenticAMD", "fma avx2 avx512fp16", False),  # another word
        ("GenuineIntel", "fma avx2 avx512f", False),
    ],
)
def test_amds_cpus_with_avx512_are_tuned_for(
    python: Machine, vendor: str, flags: str, is_tuned: bool
) -> None:
    cpuinfo = python.home / "cpuinfo"
    cpuinfo.write_text(f"vendor_id : {vendor}\nflags : {flags}\n")
    (python.bin / "grep").unlink()
    python.script(
        "grep",
        f'''for word; do
shift
[ "$word" != /proc/cpuinfo ] || word="{cpuinfo}"
set -- "$@" "$word"
done
exec {shutil.which("grep")} "$@"''',
    )
    seen = python.home / "seen"
    inside = python.home / "inside"
    command = f"""printf %s "$CMAKE_ARGS" >"{seen}"
for word in $CMAKE_ARGS; do
case $word in *_INCLUDE=*) cat "${{word#*=}}" >"{inside}" ;; esac
done"""
    build(python, command)
    arguments = shlex.split(seen.read_text())
    own = [
        f"-DCMAKE_{language}_FLAGS=-fno-semantic-interposition"
        + is_tuned * " -mtune=icelake-server"
        for language in ("C", "CXX")
    ]
    assert [word for word in arguments if "_FLAGS=" in word] == own
    assert ("/arch/x86/repack.cpp" in inside.read_text()) == is_tuned


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--frob"], "no option --frob"),
        (["--python"], "--python needs"),
        (["--purge-models"], "only together with --uninstall"),
        (["--python", "none"], "none is not a Python 3.11"),
    ],
)
def test_wrong_options(machine: Machine, argv: list[str], part: str) -> None:
    assert part in machine.failure(*argv)


def test_help(machine: Machine) -> None:
    result = machine.install("--help")
    assert (result.returncode, result.stdout.startswith("Usage: ./install.sh")) == (0, True)


def program(machine: Machine) -> Path:
    """An installed program whose Python finds this checkout; the folder of its data."""
    data = machine.home / ".local/share/localrun"
    python = data / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{SCRIPT.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    link = machine.home / "bin/localrun"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(data / "venv/bin/localrun")
    return data


@pytest.mark.skipif(sys.platform == "darwin", reason="the data folder is elsewhere there")
def test_uninstall_keeps_models_unless_told(machine: Machine) -> None:
    data = program(machine)
    models = data / "models"
    Store(models)
    kept = machine.install("--uninstall")
    assert kept.returncode == 0
    assert f"the models are still in {models}" in kept.stdout
    assert not os.path.lexists(machine.home / "bin/localrun")
    assert not (data / "venv").exists()
    # The program is gone by now, and with it what knows the settings.
    assert machine.install("--uninstall", "--purge-models").returncode == 0
    assert not models.exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="the data folder is elsewhere there")
def test_uninstall_stops_the_daemon_and_tells_of_its_log(machine: Machine) -> None:
    data, state = program(machine), machine.home / ".local/state/localrun"
    state.mkdir(parents=True)
    for name in ("daemon.log", "daemon.log.1", "history", "start-11434.lock"):
        (state / name).touch()
    command = data / "venv/bin/localrun"
    command.write_text('#!/bin/sh\necho "told to $*"\n')
    command.chmod(0o755)
    kept = machine.install("--uninstall")
    assert kept.returncode == 0
    assert "told to stop --daemon\n" in kept.stdout
    assert f"the history of the prompt are still in {state}\n" in kept.stdout
    assert machine.install("--uninstall", "--purge-models").returncode == 0
    assert not state.exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="the data folder is elsewhere there")
def test_uninstall_goes_on_when_the_daemon_does_not_stop(machine: Machine) -> None:
    command = program(machine) / "venv/bin/localrun"
    for code, is_told in ((3, False), (1, True)):
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f"#!/bin/sh\necho 'Error: why' >&2\nexit {code}\n")
        command.chmod(0o755)
        result = machine.install("--uninstall")
        assert (result.returncode, result.stderr) == (0, "")
        assert ("a daemon may still be running: Error: why" in result.stdout) == is_told
        assert not command.exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="the data folder is elsewhere there")
@pytest.mark.parametrize("name", ["LOCALRUN_MODELS", "OLLAMA_MODELS"])
def test_purge_removes_the_store_that_the_settings_name(machine: Machine, name: str) -> None:
    data = program(machine)
    other, chosen = data / "models", machine.home / "chosen"
    for folder in (other, chosen):
        Store(folder).blobs.ingest([b"weights"], None)
    (chosen / "notes.txt").write_text("mine")
    result = machine.install("--uninstall", "--purge-models", **{name: str(chosen)})
    assert (result.returncode, f"other files in {chosen} stay" in result.stdout) == (0, True)
    assert os.listdir(chosen) == ["notes.txt"]
    assert Store(other).is_ours


@pytest.mark.skipif(sys.platform == "darwin", reason="the data folder is elsewhere there")
def test_purge_spares_a_store_that_is_not_ours(machine: Machine) -> None:
    for models in (machine.home / ".local/share/localrun/models", machine.home / "chosen"):
        (models / "blobs").mkdir(parents=True)
        line = machine.failure("--uninstall", "--purge-models", LOCALRUN_MODELS=str(models))
        assert "was not made by localrun" in line
        assert (models / "blobs").is_dir()
