#!/bin/bash
# Builds a preset and runs its tests: tools/suite.sh dev|asan|tsan|clang|soak
#
# The results go to build/results/PRESET.xml, for tools/tally.py. The last line is the tally.
set -u
cd "$(dirname "$0")/.."

preset=$1
results=$PWD/build/results
xml=$results/$preset.xml
mkdir -p "$results"
rm -f "$xml"

targets=()
select=()
front=()
case $preset in
tsan)
    # The rooms whose code runs on several threads; but for a software device, whose own run unseen.
    targets=(tests_base tests_stream tests_store tests_serve draft_sessions_test regolith)
    select=(-L '^(base|stream|store|serve)$'
        -E '^(pack_|budget|sim$|cache_model|serve_(prefix|gpu))')
    # gcc 12's runtime dies on kernels that randomise addresses widely.
    if setarch -R true 2>/dev/null; then front=(setarch -R); fi
    ;;
clang)
    # Another compiler may change what the arithmetic gives, and the C around it; the tests from
    # outside (server, commands) would only say it again, and so would a software device. The
    # kernels as ARM code come from a compiler of their own.
    select=(-L '^(base|quant|kernels|model|engine|stream|store|text|golden|fuzz|sim)$'
        -E '^(arm_test|gpu_(arena_|draft_|shape_|timing_|window_)?(test|demo))$')
    ;;
asan)
    # The longest tests of a software device, which no sanitizer sees into: in `make soak`.
    select=(-E '^(serve_gpu_test|gpu_((arena|draft|drafts_matrix|shape)_test|arena_cli))$')
    ;;
soak) ;; # the whole suite, the long forms included
esac

if tools/build.sh "$preset" "${targets[@]}"; then
    "${front[@]}" ctest --preset "$preset" -j "${JOBS:-2}" "${select[@]}" --output-junit "$xml"
else
    tools/tally.py --record "$xml" "build of preset $preset" fail
fi
tools/tally.py "$xml"
