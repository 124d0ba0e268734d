#!/usr/bin/python3
"""Compares the packers with those of llama.cpp on the same tensors.

    bench/quantizers.py --bench build/release/bench/quant_bench --peer PEER --lib FOLDER \\
        [--model master.gguf [--tensor REGEX]... [--imatrix FILE]] [--synthetic]
        [--type T]... [--rows N] [--tsv FILE]

Takes up to N rows of the float tensors that match (`--synthetic`: of random data of several shapes
too), packs them with every type that fits the row length with both programs, and prints the root
mean square error of both, relative to the data: without importance, with a random one (chi-squared,
one degree; the same for all rows), and with --imatrix with the measured one (the sum over the
experts). Weighted errors are weighted by the importance. --tsv adds lines for results.tsv, one for
each type and kind of importance: the errors of the tensor where ours is the worst against theirs,
and the number of tensors. The driver of llama.cpp is no part of this tree; it must understand
`quant TYPE IN.f32 NCOLS OUT [IMATRIX.f32]`. Exit status 1 when any of ours is worse.
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
# One of each kind: experts' inputs and outputs, attention, delta net, shared expert, connections,
# embedding, head, n-gram table, indexer, draft block.
DEFAULT = [r"blk.1.ffn_gate_exps", r"blk.6.ffn_up_exps", r"blk.4.ffn_down_exps",
           r"blk.3.attn_q.weight", r"blk.7.attn_output", r"blk.2.attn_qkv", r"blk.5.ssm_out",
           r"blk.0.ffn_up_shexp", r"blk.2.hc_attn_down", r"blk.2.hc_ffn_up", r"^token_embd",
           r"^output.weight", r"^per_layer_token_embd", r"blk.3.indexer.q_proj",
           r"blk.8.nextn.eh_proj"]


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


def compare(args, folder, group, kind, weights):
    """[(tensor, our error, theirs, our rate)] of tensors with the same columns and weights, packed
    by one call of each program: some of theirs need seconds to start."""
    x, ours, theirs = (os.path.join(folder, n) for n in ("x.f32", "ours.bin", "theirs.bin"))
    w = os.path.join(folder, "w.f32")
    cols = group[0][1].shape[1]
    np.concatenate([rows for _, rows in group]).astype("<f4").tofile(x)
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
    packed = []
    for path in (ours, theirs):
        with open(path, "rb") as f:
            packed.append(f.read())
    row_bytes, at, result = len(packed[0]) // sum(len(rows) for _, rows in group), 0, []
    for name, rows in group:
        errors = []
        rows.astype("<f4").tofile(x)
        for blocks in packed:
            with open(ours, "wb") as f:
                f.write(blocks[at * row_bytes:(at + len(rows)) * row_bytes])
            plain, weighted = call([args.bench, "rate", kind, x, str(cols), ours] + mine).split()
            errors.append(float(plain if weights is None else weighted))
        at += len(rows)
        result.append((name, *errors, float(rate.split()[0])))
    return result


def synthetic(n_rows):
    """name -> float32 [rows][cols] of shapes that models and converters produce."""
    r = np.random.default_rng(11)
    cols = 512
    normal = r.standard_normal((n_rows, cols))
    outliers = normal.copy()
    outliers[r.random(normal.shape) < 0.004] *= 12
    scaled = normal * np.exp(0.7 * r.standard_normal((1, cols)))
    return {name: x.astype(np.float32) for name, x in (
        ("normal", normal), ("laplace", r.laplace(size=(n_rows, cols))),
        ("student 4", r.standard_t(4, (n_rows, cols))), ("uniform", r.uniform(-1, 1, normal.shape)),
        ("outliers", outliers), ("scaled columns", scaled), ("shifted", normal + 0.8),
        ("sparse", np.where(r.random(normal.shape) < 0.15, normal, 0)),
        ("tiny", normal * 1e-6), ("narrow rows", normal[:, :64]))}


def measured_importance(path, name, cols):
    """Of the column, all matrices of the tensor together; None where the file has none."""
    with open(path, "rb") as f:
        for t in Gguf(path).tensors:
            if t.name != name + ".in_sum2":
                continue
            f.seek(t.offset)
            w = np.frombuffer(f.read(4 * int(np.prod(t.dims))), "<f4").reshape(-1, cols).sum(0)
            return w if w.sum() > 0 else None
    return None


def importances(args, name, cols):
    yield "plain", None
    yield "random importance", np.random.default_rng(7).chisquare(1, cols) + 1e-3
    measured = measured_importance(args.imatrix, name, cols) if args.imatrix else None
    if measured is not None:
        yield "measured importance", measured


def tsv_line(args, kind, label, results):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), "?") + f", {os.cpu_count()} cores"
    name, ours, theirs, _ = max(results, key=lambda x: x[1] / x[2])
    ratios = sorted(x[1] / x[2] for x in results)
    rate = sorted(x[3] for x in results)[len(results) // 2]
    return "\t".join([
        str(datetime.date.today()), cpu, "cpu", os.path.basename(args.model or "synthetic"),
        f"{kind} error / data, {label}: worst of {len(results)} tensors",
        f"quantizers.py --rows {args.rows} --synthetic --type {kind} (worst: {name})",
        f"{theirs:.5f}", f"{ours:.5f}", f"{ours / theirs:.4f}", "yes" if ours <= theirs else "no",
        f"before = llama.cpp; ratios {ratios[0]:.3f} to {ratios[-1]:.3f}, median "
        f"{ratios[len(ratios) // 2]:.3f}; {rate:.2f} Mweights/s, one thread"])


def groups_of(args, tensors):
    """(importance, columns, its bytes) -> [weights, [(tensor, rows)]]"""
    groups = {}
    for name, rows in tensors.items():
        cols = rows.shape[1]
        for label, w in importances(args, name, cols):
            key = label, cols, b"" if w is None else w.tobytes()
            groups.setdefault(key, [w, []])[1].append((name, rows))
    return groups


def compare_all(args, tensors, folder):
    """(type, importance) -> [(tensor, ours, theirs, rate)]"""
    found = {}
    for kind, block in TYPES.items():
        for (label, cols, _), (w, group) in groups_of(args, tensors).items():
            if cols % block or (args.type and kind not in args.type):
                continue
            for name, ours, theirs, rate in compare(args, folder, group, kind, w):
                found.setdefault((kind, label), []).append((name, ours, theirs, rate))
                mark = "" if ours <= theirs else "  WORSE"
                print(f"{name:32} {kind:8} {label:20} llama.cpp {theirs:.6f}  ours {ours:.6f}  "
                      f"ratio {ours / theirs:.4f}  {rate:7.2f} Mw/s{mark}", flush=True)
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bench", required=True)
    p.add_argument("--peer", required=True)
    p.add_argument("--lib")
    p.add_argument("--model")
    p.add_argument("--imatrix")
    p.add_argument("--synthetic", action="store_true")
    p.add_argument("--tensor", action="append")
    p.add_argument("--type", action="append")
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--tsv", metavar="FILE", help="append lines")
    args = p.parse_args()
    tensors = rows_of(args.model, args.tensor or DEFAULT, args.rows) if args.model else {}
    if args.synthetic:
        tensors.update(synthetic(args.rows))
    if not tensors:
        sys.exit("no float tensor matches")
    with tempfile.TemporaryDirectory() as folder:
        found = compare_all(args, tensors, folder)
    if args.tsv:
        with open(args.tsv, "a", encoding="utf-8") as f:
            f.writelines(tsv_line(args, *key, results) + "\n" for key, results in found.items())
    worse = sum(x[1] > x[2] for results in found.values() for x in results)
    print(f"{sum(map(len, found.values()))} comparisons, ours worse in {worse}")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
