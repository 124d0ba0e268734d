#!/bin/bash
# Proves the set-up on a bare Debian 12: tools/chroot_check.sh DIR [COMMAND...]
#
# Makes a minimal system in DIR/base (once; needs root, debootstrap and some 500 MB), copies it to
# DIR/run, clones the committed tree into it and runs each COMMAND there (`make`, `make demo`,
# `make check` by default) first as root, then, from another fresh copy, as a user who has sudo.
# DIR/base and the downloaded packages stay for the next run; DIR/run is removed.
#
# RG_MIRROR names a Debian mirror other than debootstrap's own. Certificates and proxy settings of
# this machine are copied in. RG_CHROOT_AS=root or =user runs only that half.
set -eu

[ $# -ge 1 ] || {
    echo "usage: tools/chroot_check.sh DIR [COMMAND...]" >&2
    exit 2
}
[ "$(id -u)" -eq 0 ] || {
    echo "chroot_check: must be root" >&2
    exit 1
}
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 'make' 'make demo' 'make check'
base=$dir/base
run=$dir/run

# --one-file-system: nothing outside the copy may be removed, even with a mount left behind.
drop_run() {
    local point
    for point in proc dev/pts dev sys var/cache/apt/archives; do
        mountpoint -q "$run/$point" && umount "$run/$point"
    done
    rm -rf --one-file-system "$run"
}
trap drop_run EXIT

if [ ! -e "$base/etc/debian_version" ]; then
    debootstrap --variant=minbase --include=make,ca-certificates,sudo bookworm "$base" \
        ${RG_MIRROR:+"$RG_MIRROR"}
fi

fresh_copy() {
    drop_run
    mkdir -p "$dir/archives/partial"
    cp -a "$base" "$run"
    cp -L /etc/resolv.conf "$run/etc/resolv.conf"
    [ ! -d /usr/local/share/ca-certificates ] ||
        cp -a /usr/local/share/ca-certificates/. "$run/usr/local/share/ca-certificates/"
    grep -rhi '^Acquire::http' /etc/apt/apt.conf /etc/apt/apt.conf.d 2>/dev/null \
        >"$run/etc/apt/apt.conf.d/99proxy" || true
    # Keep what was downloaded for the next copy.
    echo 'Binary::apt-get::APT::Keep-Downloaded-Packages "true";' \
        >"$run/etc/apt/apt.conf.d/99keep"
    mount -t proc proc "$run/proc"
    mount --bind /sys "$run/sys"
    mount --bind /dev "$run/dev"
    mount --bind /dev/pts "$run/dev/pts"
    mount --bind "$dir/archives" "$run/var/cache/apt/archives"
    chroot "$run" update-ca-certificates >/dev/null 2>&1
    chroot "$run" useradd -m -s /bin/bash tester
    echo 'tester ALL=(ALL) NOPASSWD: ALL' >"$run/etc/sudoers.d/tester"
    git clone -q --depth 1 "file://$tree" "$run/home/tester/regolith"
}

inside() {
    local who=$1 command=$2
    echo "== $who: $command"
    local start=$SECONDS
    chroot "$run" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb ${JOBS:+JOBS="$JOBS"} \
        su "$who" -s /bin/bash -c "cd /home/tester/regolith && $command"
    echo "== $who: $command: ok in $((SECONDS - start)) s"
}

for who in ${RG_CHROOT_AS:-root user}; do
    fresh_copy
    case $who in
    root) chroot "$run" chown -R root:root /home/tester/regolith ;;
    user)
        who=tester
        chroot "$run" chown -R tester:tester /home/tester/regolith
        ;;
    esac
    for command in "$@"; do
        inside "$who" "$command"
    done
done
echo "chroot_check: all passed"
