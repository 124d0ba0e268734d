#!/usr/bin/python3
"""peer_test.py PROGRAM: llama.cpp loads what `convert --no-mtp` makes, and computes the same.

Needs a driver of llama.cpp, named by RG_PEER (and RG_PEER_LIB, the folder of its libraries), that
understands `logits MODEL IDS OUT --kv f32 --fa 0 --lib DIR`; it is no part of this tree: without
one the test is skipped (77). It rounds activations as its kernels like, so float files must agree
with the goldens to 1e-4, and of the others their float32 copies must; the files themselves are
loaded, and their logits are compared statistically: no farther from the exact ones than 1.5 times
(median) and twice (90 %) what the reference run of the same program reached, or our own kernels of
8-bit activations do.
"""
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
import hf_write  # noqa: E402
from tool import Tool, check, failures, finish  # noqa: E402

TINY = os.path.join(HERE, "data", "tiny")
CHECKPOINTS = os.path.join(HERE, "..", "..", "shared", "models", "tiny-hf")
# Every type of quantize, and float ones; those of 256 need rows of as many.
TYPES_32 = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "q2_0")
TYPES_256 = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "iq3_xxs", "iq3_s", "iq2_xxs",
             "iq2_xs", "iq2_s", "iq1_s")
SYNTH = ["--set", "mtp=1", "--set", "hidden=256", "--set", "ff=256", "--set", "ff_shared=256",
         "--set", "layers=4", "--set", "experts=6"]


def distances(x, ref):
    """Per position: root mean square difference in standard deviations of the reference."""
    return np.sqrt(((x - ref) ** 2).mean(1)) / ref.std()


class Peer:
    def __init__(self, tool, folder):
        self.tool, self.folder = tool, folder
        self.lib = ["--lib", os.environ["RG_PEER_LIB"]] if os.environ.get("RG_PEER_LIB") else []

    def theirs(self, what, model, ids):
        """Logits of the other program; None (and a failure) where it does not take the file."""
        out = os.path.join(self.folder, "theirs.f32")
        run = subprocess.run([os.environ["RG_PEER"], "logits", model, ids, out, "--kv", "f32",
                              "--fa", "0", "--no-repack", *self.lib], capture_output=True,
                             text=True)
        check(what + " is loaded by the other program", run.returncode == 0, run.stderr[-400:])
        if run.returncode:
            return None
        with open(ids, encoding="ascii") as f:
            n = len(f.read().split())
        return np.fromfile(out, "<f4").reshape(n, -1)

    def ours(self, model, ids, kernels):
        out = os.path.join(self.folder, "ours.f32")
        done = self.tool("logits", "-m", model, "--ids", ids, "--kernels", kernels, "--kv", "f32",
                         "--out", out)
        check(f"{model} is loaded", done.returncode == 0, done.stderr)
        with open(ids, encoding="ascii") as f:
            return np.fromfile(out, "<f4").reshape(len(f.read().split()), -1)

    def exact(self, what, model, ids, ref, positions=None):
        """A float file: 1e-4 at every position."""
        x = self.theirs(what, model, ids)
        if x is None:
            return
        error = np.abs(x[:positions] - ref[:positions]).max()
        print(f"{what:28} exact  max error {error:.2e}", flush=True)
        check(what + " agrees", error <= 1e-4, error)

    def rounded(self, what, model, ids, ref, median, p90):
        """A file of other types: statistics, and the float32 copy exactly."""
        x = self.theirs(what, model, ids)
        if x is None:
            return
        d = np.sort(distances(x, ref))
        m, p = d[len(d) // 2], d[len(d) * 9 // 10]
        argmax = (x.argmax(1) == ref.argmax(1)).mean()
        print(f"{what:28} rounded  median {m:.4f} (limit {median:.4f})  90 % {p:.4f} "
              f"({p90:.4f})  argmax {argmax:.3f}", flush=True)
        check(what + " agrees", np.isfinite(x).all() and m <= median and p <= p90, (m, p))
        copy = os.path.join(self.folder, "copy.gguf")
        done = self.tool("quantize", model, copy, "--type", "f32", "--overwrite")
        check(what + ": copy", done.returncode == 0, done.stderr)
        self.exact(what + ", f32 copy", copy, ids, ref)


def golden(folder, name, which="ref"):
    ids = os.path.join(folder, name + ".ids")
    with open(ids, encoding="ascii") as f:
        n = len(f.read().split())
    return ids, np.fromfile(os.path.join(folder, f"{name}.{which}.f32"), "<f4").reshape(n, -1)


def test_checkpoints(tool, peer, folder):
    """The checkpoints of another library, against their goldens. The limits are 1.5 and 2 times
    what tests/data/tiny's llama columns show for such files."""
    if not os.path.isdir(CHECKPOINTS):
        print("no checkpoints at hand")
        return

    def convert(name, *words):
        out = os.path.join(folder, name + ".gguf")
        done = tool("convert", os.path.join(CHECKPOINTS, name), out, "--no-mtp", "--overwrite",
                    *words)
        check(name + " is converted", done.returncode == 0, done.stderr)
        return out

    a_ids, a_ref = golden(TINY, "a-f32")
    bf_ids, bf_ref = golden(CHECKPOINTS, "a-bf16")
    b_ids, b_ref = golden(TINY, "b-f16")
    b_hf = np.fromfile(os.path.join(CHECKPOINTS, "b-f16.hf.f32"), "<f4").reshape(b_ref.shape)
    c_ids, c_ref = golden(TINY, "c-f32")
    peer.exact("a-f32", convert("a-f32"), a_ids, a_ref)
    # From the 67th position on that program attends to cells that ties choose.
    peer.exact("c-f32", convert("c-f32"), c_ids, c_ref, 67)
    peer.exact("b-f16 as f32", convert("b-f16"), b_ids, b_hf)
    peer.exact("a-bf16 as f32", convert("a-bf16", "--type", "f32"), bf_ids, bf_ref)
    peer.rounded("b-f16", convert("b-f16", "--type", "f16", "--tensor-type", "^token_embd=q8_0",
                                  "--tensor-type", r"indexer\..*proj=f32"), b_ids, b_ref,
                 1.5 * 1.1e-3, 2 * 1.5e-3)
    peer.rounded("a-bf16", convert("a-bf16"), bf_ids, bf_ref, 1.5 * 4.1e-2, 2 * 1.2e-1)


def test_types(tool, peer, folder):
    """Every type, made by convert itself, of a model with a draft block that is left out."""
    model, source = os.path.join(folder, "mtp.gguf"), os.path.join(folder, "hf")
    done = tool("synth", model, "--preset", "tiny", *SYNTH, "--default-type", "f32", "--seed", "3")
    check("synth", done.returncode == 0, done.stderr)
    hf_write.write(model, source)
    ids = os.path.join(folder, "ids")
    with open(ids, "w", encoding="ascii") as f:
        f.write(" ".join(str(1 + i * 7919 % 300) for i in range(60)))
    out = os.path.join(folder, "typed.gguf")
    for kind in ("f32", *TYPES_32, *TYPES_256):
        done = tool("convert", source, out, "--no-mtp", "--type", kind, "--overwrite")
        check(kind, done.returncode == 0, done.stderr)
        ref = peer.ours(out, ids, "ref")
        if kind == "f32":
            peer.exact(kind, out, ids, ref)
            continue
        mine = np.sort(distances(peer.ours(out, ids, "auto"), ref))
        peer.rounded(kind, out, ids, ref, max(0.01, 1.5 * mine[len(mine) // 2]),
                     max(0.02, 2 * mine[len(mine) * 9 // 10]))


def main():
    if not os.environ.get("RG_PEER"):
        print("SKIPPED: RG_PEER names no driver of llama.cpp")
        sys.exit(77)
    tool = Tool(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(tool, folder)
        test_checkpoints(tool, peer, folder)
        test_types(tool, peer, folder)
    print(f"{len(failures)} failures")
    finish()


if __name__ == "__main__":
    main()
