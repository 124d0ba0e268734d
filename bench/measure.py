"""What the measuring programs share: fresh processes under a memory limit, dropped page caches, the
columns of bench/results.tsv.
"""
import glob
import os
import platform
import re
import shlex
import subprocess
import tempfile
import time

from memory_limit import MemoryLimit

RUN_SECONDS_MAX = 3600


class Failed(Exception):
    """One line for the user."""


def parts_of(path):
    """All files of a split model."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})(.*)", path)
    if not match:
        return [path]
    start, count, end = (glob.escape(g) for g in match.groups())
    return sorted(glob.glob(f"{start}-?????-of-{count}{end}"))


def drop_page_cache(path):
    for part in parts_of(path):
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def start(command, limit_bytes):
    """Standard output, and the peak of its memory where a limit is set."""
    limit = MemoryLimit(limit_bytes)
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                  check=False, timeout=RUN_SECONDS_MAX, preexec_fn=limit.enter)
            out.seek(0)
            err.seek(0)
            said = err.read().decode("utf-8", "replace")
            if done.returncode:
                last = (said.strip().splitlines() or ["no message"])[-1]
                raise Failed(f"{shlex.join(command)}: exit {done.returncode}: {last}")
            return out.read().decode("utf-8", "replace"), said, limit.peak_bytes()
    finally:
        limit.close()


def machine_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            name = re.search(r"model name\s*:\s*(.*)", f.read())
    except OSError:
        name = None
    return f"{name[1] if name else platform.machine()}, {os.cpu_count()} cores"


def spread(values):
    return f"{min(values):.3g}-{max(values):.3g}"


def row(model, what, command, before, after, note, machine=None, ratio=None, backend="cpu"):
    """A line of bench/results.tsv: date machine backend model what command before after ratio kept
    note. The ratio is after / before unless it is given."""
    if ratio is None and before > 0:
        ratio = after / before
    return "\t".join([time.strftime("%Y-%m-%d"), machine or machine_name(), backend,
                      os.path.basename(model), what, command, f"{before:.4g}", f"{after:.4g}",
                      "" if ratio is None else f"{ratio:.3f}", "-", note])
