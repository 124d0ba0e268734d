#!/bin/bash
# The checks that read the sources: tools/lint.sh [RESULTS.xml]
#
# tidy.py, clang-format, clang-tidy, cppcheck, shell syntax. Each is one result; those whose tool is
# absent are reported as failed. The last line is the tally.
set -u
cd "$(dirname "$0")/.."

xml=${1:-$PWD/build/results/lint.xml}
rm -f "$xml"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step() {
    local name=$1 outcome=pass
    shift
    "$@" >"$log" 2>&1 || outcome=fail
    [ "$outcome" = pass ] || { echo "== $name" && cat "$log"; } >&2
    tools/tally.py --record "$xml" "$name" "$outcome"
}

format() {
    tools/sources.sh | xargs clang-format --dry-run -Werror
}

# The clang preset's compile commands: clang-tidy does not know all of gcc's flags.
static_analysis() {
    cmake --preset clang >/dev/null &&
        run-clang-tidy -quiet -p build/clang -j "${JOBS:-2}" '^.*/(src|cli)/.*\.c$' \
            >"$log.tidy" 2>&1
    local rc=$?
    # The same line of a header is reported once for each file that includes it.
    sed -E 's/\x1b\[[0-9;]*m//g' "$log.tidy" | grep -E '(warning|error): ' | sort -u |
        grep . || [ $rc -eq 0 ] || cat "$log.tidy"
    rm -f "$log.tidy"
    return $rc
}

bug_patterns() {
    # invalidFunctionArg: it takes the logarithm of a sum of exponentials for that of zero.
    cppcheck --std=c11 --enable=warning,performance,portability --inline-suppr --quiet \
        --error-exitcode=1 '--suppress=*:*_test.c' --suppress=invalidFunctionArg \
        -Isrc -Iinclude -j "${JOBS:-2}" src cli
}

shell_syntax() {
    local file rc=0
    for file in tools/*.sh .ci/run; do
        bash -n "$file" || rc=1
    done
    return $rc
}

step tidy.py tools/tidy.py
step 'shell syntax' shell_syntax
step clang-format format
step cppcheck bug_patterns
step clang-tidy static_analysis
tools/tally.py "$xml"
