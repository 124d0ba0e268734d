#!/usr/bin/python3
"""Compares the packers with those of llama.cpp on the same tensors.

    bench/quantizers.py --bench build/release/bench/quant_bench --peer PEER --lib FOLDER \\
        --model master.gguf [--tensor REGEX]... [--type T]... [--rows N] [--tsv]

Takes up to N rows of the float tensors that match, packs them with every type that fits the row
length with both programs, without importance and with a random one (chi-squared, one degree; the
same for all rows), and prints the root mean square error of both, relative to the data. Weighted
errors are weighted by the importance. --tsv prints lines for results.tsv instead. The driver of
llama.cpp is no part of this tree; it must understand `quant TYPE IN.f32 NCOLS OUT [IMATRIX.f32]`.
"""
import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests",
                                "support"))
from gguf_read import Gguf  # noqa: E402

TYPES = {"q8_0": 32, "q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "iq4_nl": 32, "mxfp4": 32,
         "q2_0": 64, "q2_K": 256, "q3_K": 256, "q4_K": 256, "q5_K": 256, "q6_K": 256,
         "iq4_xs": 256, "iq3_xxs": 256, "iq3_s": 256, "iq2_xxs": 256, "iq2_xs": 256,
         "iq2_s": 256, "iq1_s": 256}
NEED_WEIGHTS = ("iq2_xxs", "iq2_xs", "iq1_s")


def rows_of(path, patterns, n_rows):
    """name -> float32 [rows][cols] of the float tensors that match."""
    found = {}
    with open(path, "rb") as f:
        for t in Gguf(path).tensors:
            if not any(re.search(p, t.name) for p in patterns):
                continue
            cols = t.dims[0]
            count = min(n_rows, int(np.prod(t.dims[1:])))
            width = {0: 4, 1: 2, 30: 2}.get(t.type)
            if width is None:
                continue
            f.seek(t.offset)
            raw = f.read(count * cols * width)
            if t.type == 0:
                x = np.frombuffer(raw, "<f4")
            elif t.type == 1:
                x = np.frombuffer(raw, "<f2").astype(np.float32)
            else:
                x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            found[t.name] = x.reshape(count, cols)
    return found


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def compare(args, folder, name, rows, kind, cols, weights):
    x, ours, theirs = (os.path.join(folder, n) for n in ("x.f32", "ours.bin", "theirs.bin"))
    w = os.path.join(folder, "w.f32")
    rows.astype("<f4").tofile(x)
    mine = [] if weights is None else [w]
    peers = mine
    if weights is not None:
        weights.astype("<f4").tofile(w)
    elif kind in NEED_WEIGHTS:  # it demands some
        np.ones(cols, "<f4").tofile(w)
        peers = [w]
    rate = call([args.bench, "pack", kind, x, str(cols), ours] + mine)
    call([args.peer, "quant", kind.upper() if not kind.endswith("_K") else kind, x, str(cols),
          theirs, *peers] + (["--lib", args.lib] if args.lib else []))
    result = []
    for blocks in (ours, theirs):
        plain, weighted = call([args.bench, "rate", kind, x, str(cols), blocks] + mine).split()
        result.append(float(plain if weights is None else weighted))
    return result, float(rate.split()[0])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bench", required=True)
    p.add_argument("--peer", required=True)
    p.add_argument("--lib")
    p.add_argument("--model", required=True)
    p.add_argument("--tensor", action="append")
    p.add_argument("--type", action="append")
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--tsv", action="store_true")
    args = p.parse_args()
    tensors = rows_of(args.model, args.tensor or ["blk.1.ffn_gate_exps", "blk.3.attn_q.weight"],
                      args.rows)
    if not tensors:
        sys.exit("no float tensor matches")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), "?") + f", {os.cpu_count()} cores"
    worse = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in tensors.items():
            cols = rows.shape[1]
            weights = np.random.default_rng(7).chisquare(1, cols) + 1e-3
            for kind, block in TYPES.items():
                if cols % block or (args.type and kind not in args.type):
                    continue
                for label, w in (("plain", None), ("importance", weights)):
                    (ours, theirs), rate = compare(args, folder, name, rows, kind, cols, w)
                    worse += ours > theirs
                    if args.tsv:
                        print("\t".join([
                            str(datetime.date.today()), cpu, "cpu", os.path.basename(args.model),
                            f"{kind} error / data, {label}",
                            f"quantizers.py --tensor {name} --rows {len(rows)}", f"{theirs:.5f}",
                            f"{ours:.5f}", f"{ours / theirs:.4f}", "yes",
                            f"before = llama.cpp; {rate:.2f} Mweights/s, one thread"]))
                    else:
                        print(f"{name:28} {kind:8} {label:10} llama.cpp {theirs:.5f}  "
                              f"ours {ours:.5f}  ratio {ours / theirs:.4f}  {rate:7.2f} Mw/s",
                              flush=True)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
