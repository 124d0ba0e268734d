"""What the tests of the tools share: running them, and comparing the files they write."""
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np

from gguf_read import Gguf

failures = []


def check(what, good, detail=""):
    if not good:
        failures.append(what)
        print("FAILED", what, detail, flush=True)


class Tool:
    def __init__(self, program):
        self.program = program

    def __call__(self, *words, **more):
        return subprocess.run([self.program, *words], capture_output=True, text=True, **more)


def payloads(path):
    with open(path, "rb") as f:
        raw = f.read()
    return {t.name: (t.type, tuple(t.dims), raw[t.offset:t.offset + t.size_bytes])
            for t in Gguf(path).tensors}


def same_tensors(what, a, b):
    x, y = payloads(a), payloads(b)
    check(what + ": names", x.keys() == y.keys(), x.keys() ^ y.keys())
    for name in x.keys() & y.keys():
        if name.endswith("ssm_a"):  # exp and log may differ by a unit in the last place
            p, q = (np.frombuffer(v[name][2], "<f4") for v in (x, y))
            check(f"{what}: {name}", np.allclose(p, q, rtol=3e-7, atol=0))
        elif x[name] != y[name]:
            check(f"{what}: {name}", False, (x[name][:2], y[name][:2]))


def same_metadata(what, a, b, but=("general.", "quantize.")):
    x, y = Gguf(a).kv, Gguf(b).kv
    for k in x.keys() | y.keys():
        if not k.startswith(but):
            check(f"{what}: {k}", x.get(k) == y.get(k), (str(x.get(k))[:60], str(y.get(k))[:60]))


def small_files(size_bytes):
    """For preexec_fn: a drive that is full behind so many bytes of a file."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def killed(tool, what, words, out):
    """A run that is killed at any time leaves nothing under the final name; the next one completes
    it. `words` writes `out`; six kills, spread over the time that a whole run takes."""
    begin = time.monotonic()
    done = tool(*words)
    took = time.monotonic() - begin
    check(what + ": whole", done.returncode == 0, done.stderr)
    with open(out, "rb") as f:
        want = f.read()
    os.remove(out)
    kills = 0
    for i in range(6):
        run = subprocess.Popen([tool.program, *words], stdout=subprocess.DEVNULL)
        time.sleep(took * (i + 0.5) / 6)
        run.send_signal(signal.SIGKILL)
        if run.wait() == -signal.SIGKILL and not os.path.exists(out):
            kills += 1
            continue
        with open(out, "rb") as f:  # it was quicker this time, or dead behind the last step
            check(what + ": a file is a whole one", f.read() == want)
        os.remove(out)
    check(what + ": killed at least once", kills > 0)
    done = tool(*words)
    with open(out, "rb") as f:
        check(what + ": completed", done.returncode == 0 and f.read() == want, done.stderr)
    folder = os.path.dirname(out)
    check(what + ": tidy", not [n for n in os.listdir(folder) if ".part" in n], os.listdir(folder))


def finish():
    sys.exit(f"{len(failures)} failed" if failures else 0)
