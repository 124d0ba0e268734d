#!/usr/bin/python3
"""Size, speed and divergence of every type and mix of one model: the table of docs/quantize.md.

    bench/quality.py --program build/release/regolith --model master.gguf --text FILE
        [--imatrix FILE] [--sensitivity FILE] [--mix M]... [--no-mixes]
        [--budget M]... [--gate] [--ctx N] [--top-k N] [--tsv FILE] FOLDER

Makes FOLDER/MIX.gguf for every mix that `quantize --list` shows (or those named), the reference of
the master's predictions on the text, and measures all files by one call of `kld`. `--budget M` adds
a file of mixed types of the size of mix M (`--target-bytes`, with the sensitivities). `--gate`
measures the trunk: every group of its matrices at several types, all else as in the master. Files
that are there are kept: a run can be continued. The text must be one that neither importance nor
sensitivity was measured on. Prints Markdown; --tsv adds lines for results.tsv.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys

FLOATS = ("f32", "f16")
ATTENTION = r"^blk.*\.(attn_(q|k|v|qkv|gate|output)|ssm_out|indexer\.[qk]_proj)\.weight"
GATES = [  # group of the trunk, its tensors, types to try
    ("hyper-connections", r"hc_(attn|ffn|head)?_?(down|up)\.weight",
     ("q8_0", "q5_1", "q5_0", "iq4_nl")),
    ("router", r"ffn_gate_inp\.weight", ("bf16", "q8_0")),
    ("inject, alpha, beta", r"_inject\.weight|ssm_(alpha|beta)\.weight", ("bf16", "q8_0")),
    ("attention and delta net", ATTENTION, ("q8_0", "q6_K", "q5_K", "q4_K")),
    ("shared expert", r"ffn_(gate|up|down)_shexp", ("q8_0", "q6_K", "q5_K", "q4_K")),
    ("embedding", r"^token_embd", ("q8_0", "q6_K", "q5_K", "q4_K")),
    ("head", r"^output\.weight", ("q8_0", "q6_K", "q5_K", "q4_K")),
    ("n-gram memory", r"ple_(key|value)\.weight|^per_layer_token_embd",
     ("q8_0", "q5_0", "iq4_nl")),
]


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Quality:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.folder, exist_ok=True)
        self.importance = ["--imatrix", args.imatrix] if args.imatrix else []
        self.ref = self.made("reference.kl", lambda to: call(
            args.program, "kld", "-m", args.model, "-f", args.text, "--ctx", str(args.ctx),
            "--save", to))

    def made(self, name, make):
        path = os.path.join(self.args.folder, name)
        if not os.path.exists(path):
            make(path)
        return path

    def quantize(self, name, *words):
        return self.made(name, lambda to: call(self.args.program, "quantize", self.args.model, to,
                                               *self.importance, *words))

    def measure(self, paths):
        """One row of figures a file."""
        words = [w for p in paths for w in ("-m", p)]
        return json.loads(call(self.args.program, "kld", *words, "-f", self.args.text, "--ref",
                               self.ref, "--top-k", str(self.args.top_k), "--json"))["models"]

    def mixes(self):
        table = call(self.args.program, "quantize", "--list").splitlines()[1:]
        names = [line.split()[0] for line in table]
        return self.args.mix or [n for n in names if n not in FLOATS]

    def log(self, what, command, before, after, note):
        if not self.args.tsv:
            return
        cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                    if line.startswith("model name")), "?") + f", {os.cpu_count()} cores"
        ratio = f"{after / before:.3f}" if before else "-"
        with open(self.args.tsv, "a", encoding="utf-8") as f:
            f.write("\t".join([str(datetime.date.today()), cpu, "cpu",
                               os.path.basename(self.args.model), what, command,
                               f"{before:.6f}" if before else "-", f"{after:.6f}", ratio, "-",
                               note]) + "\n")


def figures(r, k):
    return (f"{r['file_bytes']:,} | {r['kl_mean']:.6f} | {r['kl_median']:.6f} | "
            f"{r['kl_p99']:.5f} | {100 * r['top1_agreement']:.2f} | "
            f"{100 * r[f'top{k}_agreement']:.2f} | {r['ppl']:.3f} | {r['tok_s']:.0f}")


def note_of(r, k):
    return (f"{r['file_bytes']} bytes; median {r['kl_median']:.6f}, 99 % {r['kl_p99']:.5f}, top-1 "
            f"{100 * r['top1_agreement']:.2f} %, top-{k} {100 * r[f'top{k}_agreement']:.2f} %, "
            f"perplexity {r['ppl']:.3f}, {r['tok_s']:.0f} tok/s")


def table_of_mixes(q):
    k, mixes = q.args.top_k, q.mixes()
    paths = [q.quantize(f"{m}.gguf", "--type", m) for m in mixes]
    rows = dict(zip(mixes, q.measure(paths)))
    head = f"bytes | mean KL | median | 99 % | top-1 % | top-{k} % | perplexity | tok/s"
    print(f"| mix | {head} |\n|{'---|' * 9}")
    for m in sorted(mixes, key=lambda m: -rows[m]["file_bytes"]):
        print(f"| {m} | {figures(rows[m], k)} |")
        q.log(f"mean KL of the mix {m} against the BF16 master",
              f"quality.py --mix {m} --ctx {q.args.ctx}", 0, rows[m]["kl_mean"],
              note_of(rows[m], k))
    return rows


def table_of_budgets(q, rows):
    k = q.args.top_k
    print(f"\n| size of | bytes | mean KL of the mix | budgeted | ratio | top-1 % | top-{k} % |\n"
          f"|{'---|' * 7}")
    worst = 0
    factors = ["--sensitivity", q.args.sensitivity] if q.args.sensitivity else []
    for m in q.args.budget:
        fixed = rows.get(m) or q.measure([q.quantize(f"{m}.gguf", "--type", m)])[0]
        path = q.quantize(f"budget-{m}.gguf", "--target-bytes", str(fixed["file_bytes"]), *factors)
        r = q.measure([path])[0]
        assert r["file_bytes"] <= fixed["file_bytes"], (m, r["file_bytes"])
        ratio = r["kl_mean"] / fixed["kl_mean"]
        worst = max(worst, ratio)
        print(f"| {m} | {r['file_bytes']:,} | {fixed['kl_mean']:.6f} | {r['kl_mean']:.6f} | "
              f"{ratio:.3f} | {100 * r['top1_agreement']:.2f} | "
              f"{100 * r[f'top{k}_agreement']:.2f} |")
        q.log(f"mean KL: --target-bytes of the size of {m} against that mix",
              f"quality.py --budget {m} --ctx {q.args.ctx}", fixed["kl_mean"], r["kl_mean"],
              note_of(r, k))
    return worst


def table_of_gates(q):
    print(f"\n| group of the trunk | type | bytes less | mean KL, alone |\n|{'---|' * 4}")
    base = os.path.getsize(q.args.model)
    files = []
    for group, expression, types in GATES:
        for kind in types:
            name = f"gate-{group.split()[0].strip(',')}-{kind}.gguf"
            path = q.quantize(name, "--type", "bf16", "--tensor-type", f"{expression}={kind}")
            files.append((group, kind, path))
    for (group, kind, path), r in zip(files, q.measure([f[2] for f in files])):
        print(f"| {group} | {kind} | {base - r['file_bytes']:,} | {r['kl_mean']:.7f} |")
        q.log(f"mean KL of the trunk's {group} as {kind}, all else as in the master",
              f"quality.py --gate --ctx {q.args.ctx}", 0, r["kl_mean"],
              f"{base - r['file_bytes']} bytes less")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--imatrix")
    p.add_argument("--sensitivity")
    p.add_argument("--mix", action="append")
    p.add_argument("--no-mixes", action="store_true", help="leave the table of the mixes out")
    p.add_argument("--budget", action="append", default=[])
    p.add_argument("--gate", action="store_true")
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--top-k", type=int, default=5)
    p.add_argument("--tsv")
    p.add_argument("folder")
    q = Quality(p.parse_args())
    rows = {} if q.args.no_mixes else table_of_mixes(q)
    worst = table_of_budgets(q, rows) if q.args.budget else 0
    if q.args.gate:
        table_of_gates(q)
    sys.exit(0 if worst <= 0.9 else 1)  # the promise of --target-bytes


if __name__ == "__main__":
    main()
