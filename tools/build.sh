#!/bin/bash
# Configures and builds one CMake preset: tools/build.sh PRESET [TARGET...]
#
# Says little when all goes well, everything when it does not.
set -eu
cd "$(dirname "$0")/.."

preset=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    echo "build: cmake could not configure preset $preset" >&2
    exit 1
fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
cmake --build --preset "$preset" -j "${JOBS:-2}" "${targets[@]}"
