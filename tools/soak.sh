#!/bin/bash
# make soak: the runs that are too long for every commit. tools/soak.sh [FUZZ_SECONDS]
#
# The whole suite and the long forms of the tests (label `soak`) under AddressSanitizer and UBSan,
# then every libFuzzer target for FUZZ_SECONDS (60 unless said; 600 for a night). A fuzzer starts
# from the corpus in the tree; what it finds stays below build/soak/. One line with the outcome is
# added to bench/soak.tsv: commit it before an issue is called done.
set -u
cd "$(dirname "$0")/.."

fuzz_seconds=${1:-${FUZZ_SECONDS:-60}}
[ ! -d ../shared ] || export RG_REQUIRE_SHARED=1
results=$PWD/build/results
start=$SECONDS

tools/setup.sh ci || exit 1
tools/suite.sh soak
xml=("$results/soak.xml")

fuzz_xml=$results/fuzz.xml
rm -f "$fuzz_xml"
n_targets=0
fuzz() {
    local target=$1 name=$2 work=build/soak/$2
    mkdir -p "$work/corpus" "$work/findings"
    ASAN_OPTIONS=allocator_may_return_null=1 "$target" -max_total_time="$fuzz_seconds" \
        -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/findings/" \
        "$work/corpus" "tests/fuzz/corpus/$name" >"$work/log" 2>&1
}
if [ -d tests/fuzz ]; then
    if tools/build.sh fuzz; then
        for target in build/fuzz/tests/fuzz/fuzz_*; do
            # The replay programs are plain tests and have run already.
            case $target in *_replay | *'*') continue ;; esac
            [ -f "$target" ] && [ -x "$target" ] || continue
            name=${target##*/fuzz_}
            n_targets=$((n_targets + 1))
            echo "== fuzz $name for $fuzz_seconds s"
            outcome=pass
            fuzz "$target" "$name" || outcome=fail
            [ $outcome = pass ] || tail -40 "build/soak/$name/log"
            grep -h 'number_of_executed_units' "build/soak/$name/log"
            tools/tally.py --record "$fuzz_xml" "fuzz $name" $outcome
        done
    else
        tools/tally.py --record "$fuzz_xml" "build of preset fuzz" fail
    fi
    [ ! -f "$fuzz_xml" ] || xml+=("$fuzz_xml")
fi

tally=$(tools/tally.py "${xml[@]}")
rc=$?
echo "$tally"
machine="$(uname -m), $(getconf _NPROCESSORS_ONLN) processors"
printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%F)" \
    "$(git rev-parse --short HEAD 2>/dev/null || echo -)" "$machine" \
    "$((SECONDS - start))" "$n_targets x $fuzz_seconds" \
    "$(tail -1 <<<"$tally")" "$(head -n -1 <<<"$tally" | tr '\t\n' ' ;')" >>bench/soak.tsv
exit $rc
