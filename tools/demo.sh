#!/bin/bash
# make demo: the demo model writes three texts. tools/demo.sh PROGRAM
#
# Headings and figures go to standard error, what the model writes to standard output.
set -u
cd "$(dirname "$0")/.."

program=${1:-build/release/regolith}
model=models/regolith-demo-q4.gguf
for file in "$program" "$model"; do
    [ -e "$file" ] || {
        echo "demo: $file is missing" >&2
        exit 1
    }
done

bold=
plain=
if [ -t 2 ]; then
    bold=$'\e[1m'
    plain=$'\e[0m'
fi

# demo TITLE PROMPT OPTIONS...: PROMPT is only shown; the options carry it to the program.
demo() {
    printf '\n%s== %s%s\n' "$bold" "$1" "$plain" >&2
    printf '%s\n\n' "$2" | sed 's/^/> /' >&2
    shift 2
    "$program" run -m "$model" "$@" || {
        echo "demo: regolith run failed with status $?" >&2
        exit 1
    }
    echo
}

prose="The morning was fine, and Anne walked out with her sister"
demo 'It continues a text' "$prose" --raw -p "$prose" -n 80 --temp 0.8 --seed 3

question="Define reparation."
demo 'It answers a question from its dictionary' "$question" \
    --no-think -p "$question" -n 80 --temp 0

tool=models/demo-prompts/tool_call.txt
demo 'It calls a tool' "$(cat "$tool")" --raw -f "$tool" -n 80 --temp 0
printf '\nTry: %s run -m %s --no-think -p "Define wit."\n' "$program" "$model" >&2
