#!/bin/bash
# Installs what a build needs: tools/setup.sh build|check|ci
#
# The packages of tools/packages.txt, of the named group and those before it. Silent and fast when
# nothing is missing. On Debian-like systems the missing ones are installed with apt (as root, or
# through sudo); elsewhere what is missing is named and the script stops with status 1.
set -u

here=$(cd "$(dirname "$0")" && pwd)
list=$here/packages.txt
group=${1:-}
case $group in
build | check | ci) ;;
*)
    echo "usage: tools/setup.sh build|check|ci" >&2
    exit 2
    ;;
esac

stop() {
    echo "setup: $*" >&2
    exit 1
}

# Package names of the group and those before it, one a line.
wanted_packages() {
    local line current=
    while IFS= read -r line; do
        line=${line%%#*}
        line=${line//[[:space:]]/}
        case $line in
        '') ;;
        '['*']')
            [ "$current" = "$group" ] && return
            current=${line:1:-1}
            ;;
        *) echo "$line" ;;
        esac
    done <"$list"
}

# Those of "$@" that dpkg does not report as installed, one a line. A package that only exists as a
# virtual one (another provides it) counts as installed.
missing_packages() {
    local have
    have=$(dpkg-query -W -f='${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null |
        sed -n 's/^installed //p' | sed -E 's/\([^)]*\)//g; s/,/ /g' | tr -s ' ' '\n' | sort -u)
    printf '%s\n' "$@" | sort -u | comm -23 - <(printf '%s\n' "$have")
}

# Without dpkg the packages cannot be asked for; the tools and libraries they stand for can.
missing_elsewhere() {
    local tool module
    for tool in cc:gcc make:make cmake:cmake ninja:ninja-build pkg-config:pkg-config \
        python3:python3; do
        command -v "${tool%%:*}" >/dev/null || echo "${tool#*:}"
    done
    if command -v pkg-config >/dev/null; then
        local modules="libpcre2-8 libxxhash"
        [ "$group" = build ] || modules="$modules cmocka"
        for module in $modules; do
            pkg-config --exists "$module" || echo "$module"
        done
    fi
    [ "$group" = build ] && return
    command -v ctags >/dev/null || echo universal-ctags
    python3 -c 'import jinja2' 2>/dev/null || echo python3-jinja2
    python3 -c 'import numpy' 2>/dev/null || echo python3-numpy
    [ "$group" = check ] && return
    for tool in git clang clang-format clang-tidy cppcheck; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    missing=$(missing_elsewhere | tr '\n' ' ')
    [ -z "$missing" ] && exit 0
    stop "this system has no apt; install these with its own package manager: ${missing% }"
fi

mapfile -t wanted < <(wanted_packages)
[ ${#wanted[@]} -gt 0 ] || stop "no packages for group $group in $list"
mapfile -t missing < <(missing_packages "${wanted[@]}")
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    # A password prompt is fine for a person at a terminal, and for nobody else.
    if command -v sudo >/dev/null &&
        { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 2 ]; }; }; then
        as_root=(sudo)
    else
        stop "neither root nor able to use sudo; ask for these packages: ${missing[*]}"
    fi
fi

echo "setup: installing ${#missing[@]} packages with apt: ${missing[*]}" >&2
"${as_root[@]}" apt-get update -q >&2 ||
    stop "apt-get update failed; still missing: ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}" >&2 ||
    stop "apt-get install failed; still missing: ${missing[*]}"
mapfile -t missing < <(missing_packages "${wanted[@]}")
[ ${#missing[@]} -eq 0 ] || stop "apt-get reported success, yet these are missing: ${missing[*]}"
