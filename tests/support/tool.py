"""What the tests of the tools share: running them, and comparing the files they write."""
import subprocess
import sys

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


def finish():
    sys.exit(f"{len(failures)} failed" if failures else 0)
