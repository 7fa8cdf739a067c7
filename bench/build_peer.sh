#!/bin/sh
# Builds llama.cpp's own llama-server from the llama.cpp source that llama-cpp-python ships, in the
# version pyproject.toml pins and with the flags of our own build, so that a comparison with it
# compares servers and not compilers. The last line on stdout is the program's path.
#
#   LOCALRUN_BENCH_SDIST  an sdist that is already here (otherwise pip downloads it)
#   LOCALRUN_BENCH_JOBS   compilers at once (otherwise one per core)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^ *"llama-cpp-python==\([0-9.]*\)".*/\1/p' "$root/pyproject.toml")
[ -n "$version" ] || { echo "pyproject.toml pins no llama-cpp-python" >&2; exit 1; }
python=${PYTHON:-python3}
cache=$("$python" -c 'import platformdirs
print(platformdirs.user_cache_dir("localrun", appauthor=False))')/bench/llama-server-$version
program=$cache/llama-server

if [ ! -x "$program" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 1' INT TERM
    sdist=${LOCALRUN_BENCH_SDIST:-}
    if [ -z "$sdist" ]; then
        # pip would run the build backend for the metadata alone; that is its way with sdists.
        "$python" -m pip download --quiet --no-deps --no-binary :all: --dest "$scratch" \
            "llama-cpp-python==$version" >&2
        sdist=$(ls "$scratch"/llama_cpp_python-*.tar.gz)
    fi
    tar -xzf "$sdist" -C "$scratch"
    # Static, so that one file can be kept; shared and static builds compute at the same speed.
    cmake -S "$scratch"/llama_cpp_python-*/vendor/llama.cpp -B "$scratch/build" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_RPC=ON \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >&2
    cmake --build "$scratch/build" --target llama-server \
        --parallel "${LOCALRUN_BENCH_JOBS:-$(getconf _NPROCESSORS_ONLN)}" >&2
    cp "$scratch/build/bin/llama-server" "$program.part"
    mv "$program.part" "$program"
fi
echo "$program"
