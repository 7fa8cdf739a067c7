#!/bin/sh
# Builds llama.cpp's own llama-server from the llama.cpp source that llama-cpp-python ships, in the
# version pyproject.toml pins, for this CPU and otherwise as llama.cpp builds itself, which is what
# its users have. What install.sh adds to that is measured in docs/benchmarks.md, "Build flags"; a
# comparison of servers alone has the same additions in LOCALRUN_INSTALL_CMAKE_ARGS. Takes minutes,
# once per version and flags. The last line on stdout is the program's path.
#
#   LOCALRUN_INSTALL_CMAKE_ARGS   further options of the build, as for install.sh
#   LOCALRUN_BENCH_SDIST          an sdist that is already here (otherwise pip downloads it)
#   LOCALRUN_BENCH_JOBS           compilers at once (otherwise one per core)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^ *"llama-cpp-python==\([0-9.]*\)".*/\1/p' "$root/pyproject.toml")
[ -n "$version" ] || { echo "pyproject.toml pins no llama-cpp-python" >&2; exit 1; }
python=${PYTHON:-python3}
jobs=${LOCALRUN_BENCH_JOBS:-$(getconf _NPROCESSORS_ONLN)}
flags="-DGGML_RPC=ON -DGGML_NATIVE=ON${LOCALRUN_INSTALL_CMAKE_ARGS:+ $LOCALRUN_INSTALL_CMAKE_ARGS}"
key=$version-$(printf '%s' "$flags" | cksum | cut -d ' ' -f 1)
cache=$("$python" -c 'import platformdirs
print(platformdirs.user_cache_dir("localrun", appauthor=False))')/bench/llama-server-$key
program=$cache/llama-server

if [ ! -x "$program" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 1' INT TERM
    echo "building llama-server, once; the log is $cache/build.log" >&2
    exec 3>&1 >"$cache/build.log" 2>&1
    sdist=${LOCALRUN_BENCH_SDIST:-}
    if [ -z "$sdist" ]; then
        "$python" -m pip download --no-deps --no-binary :all: --dest "$scratch" \
            "llama-cpp-python==$version"
        sdist=$(ls "$scratch"/llama_cpp_python-*.tar.gz)
    fi
    tar -xzf "$sdist" -C "$scratch"
    # Static, so that one file is all there is to keep. $flags is a list of words.
    # shellcheck disable=SC2086
    cmake -S "$scratch"/llama_cpp_python-*/vendor/llama.cpp -B "$scratch/build" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF $flags
    cmake --build "$scratch/build" --target llama-server --parallel "$jobs"
    echo "$flags" >"$cache/flags"
    cp "$scratch/build/bin/llama-server" "$program.part"
    mv "$program.part" "$program"
    exec >&3
fi
echo "$program"
