#!/usr/bin/python3
"""budget_test.py BINARY: a memory budget is kept.

A model several times larger than the limit, made by `synth`, reads a prompt of 600 tokens and
generates 64 under a memory cgroup of the planned sum and 5 %, at three budgets: it is never killed,
and the arena stays within its part. Skipped (77) where no such group can be made. A budget that
cannot work is refused with the sum.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from memory_limit import MemoryLimit  # noqa: E402

BINARY = ""
MODEL = ""
N_PROMPT, N_TOKENS, N_CTX = 600, 64, 1024
MIB = 1 << 20
# 6 layers of 256 experts: about 500 MB of them behind a trunk of some 30 MB.
SHAPE = ["hidden=512", "layers=6", "experts=256", "used=8", "ff=512", "ff_shared=256", "heads=8",
         "kv_heads=2", "head_dim=64", "rot=32", "k_heads=2", "v_heads=4", "ssm_dim=64", "rank=64",
         "ngram_base=20000", "vocab=4096", "mtp=0", "ctx=4096"]


def start(*args, limit=None):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=600,
                          preexec_fn=limit.enter if limit else None)


def plan(budget_mib):
    """the sum of the plan in bytes, and its arena"""
    run = start("plan", "-m", MODEL, "--ram", f"{budget_mib}M", "--ctx", N_CTX)
    assert run.returncode == 0, run.stderr
    figure = lambda name: float(re.search(rf"^ *{name} +([0-9.]+) MiB", run.stdout, re.M)[1])
    return int(figure("sum") * MIB), int(figure("experts") * MIB)


class Budget(unittest.TestCase):
    def check_budget(self, budget_mib):
        planned, arena = plan(budget_mib)
        self.assertLessEqual(planned, budget_mib * MIB)
        self.assertGreater(os.path.getsize(MODEL), 2 * planned)
        limit = MemoryLimit(planned + planned // 20)
        try:
            run = start("run", "-m", MODEL, "--ids", IDS, "-n", N_TOKENS, "--ignore-eos", "--ctx",
                        N_CTX, "--ram", f"{budget_mib}M", "--json", limit=limit)
            self.assertEqual(run.returncode, 0, f"{budget_mib} MiB: {run.stderr[-500:]}")
            figures = json.loads(run.stdout)
            self.assertEqual(figures["decode_tokens"], N_TOKENS)
            peak = re.search(r"arena ([0-9.]+) MiB \(peak ([0-9.]+)\)", run.stderr)
            self.assertLessEqual(float(peak[2]), arena / MIB + 0.1)
            print(f"budget {budget_mib} MiB: plan {planned / MIB:.1f}, rss peak "
                  f"{figures['rss_peak_bytes'] / MIB:.1f}, group peak "
                  f"{(limit.peak_bytes() or 0) / MIB:.1f} MiB", flush=True)
        finally:
            limit.close()

    def test_small(self):
        self.check_budget(110)

    def test_middle(self):
        self.check_budget(150)

    def test_large(self):
        self.check_budget(220)

    def test_impossible(self):
        run = start("run", "-m", MODEL, "--ids", IDS, "-n", 1, "--ram", "20M")
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^regolith: .*20 MiB is too small: trunk .* = \d+ MiB\n$")


def main():
    global BINARY, MODEL, IDS
    BINARY = os.path.abspath(sys.argv.pop(1))
    try:
        MemoryLimit(1 << 30).close()
    except OSError as e:
        print(f"SKIPPED: {e}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="regolith-budget-", dir="/var/tmp") as folder:
        MODEL = os.path.join(folder, "model.gguf")
        IDS = os.path.join(folder, "prompt.ids")
        made = start("synth", MODEL, *[w for s in SHAPE for w in ("--set", s)],
                     "--type", "ffn_(gate|up|down)_exps=Q4_0")
        if made.returncode:
            print(made.stderr)
            sys.exit(1)
        print(made.stdout, end="")
        with open(IDS, "w", encoding="ascii") as f:
            f.write(" ".join(str(300 + i * 7919 % 3000) for i in range(N_PROMPT)))
        unittest.main()


if __name__ == "__main__":
    main()
