#!/usr/bin/python3
"""How much each group of tensors matters: writes factors for `regolith quantize --sensitivity`.

    tools/sensitivity.py --program build/release/regolith --model master.gguf --text FILE
        [--imatrix FILE] [--type TYPE] [--folder DIR] OUT.tsv

Each group (the experts' inputs and outputs of a layer, its attention or delta net, its shared
expert, its hyper-connections; embedding, head, n-gram table, routers, small operands) is quantized
alone, everything else stays as in the master, and the
divergence from the master's predictions on the text is measured. A line of the output is a regular
expression for the group's tensors and divergence / sum of their relative errors, so that
`quantize --target-bytes` counts every tensor's error in units of divergence.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

GROUPS = [  # of a layer; the type to try
    (r"^blk\.{L}\.ffn_(gate|up)_exps", "{T}"),
    (r"^blk\.{L}\.ffn_down_exps", "{T}"),
    (r"^blk\.{L}\.(attn_(q|k|v|qkv|gate|output)|ssm_out|indexer\.[qk]_proj|nextn\.eh_proj)\.weight",
     "q4_K"),
    (r"^blk\.{L}\.(ffn_(gate|up|down)_shexp|ple_(key|value))\.weight", "q4_K"),
    (r"^blk\.{L}\.(hc_(attn|ffn)|nextn\.hc_head)_(down|up)\.weight", "iq4_nl"),
]
GLOBALS = [(r"^token_embd", "q4_K"), (r"^output\.", "q4_K"),
           (r"^output_hc_(down|up)\.weight", "iq4_nl"), (r"^per_layer_token_embd", "iq4_nl"),
           # the floats of the master: may they be bf16?
           (r"ffn_gate_inp\.weight", "bf16"), (r"_inject\.weight", "bf16"),
           (r"ssm_(alpha|beta)\.weight", "bf16")]


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def with_floor(lines):
    """A draft block changes no prediction, but its errors cost accepted drafts: a group without
    effect counts a tenth of the median of its kind in the other layers."""
    kinds = {}
    for line in lines[1:]:
        name, value = line.split("\t")
        kinds.setdefault(re.sub(r"\d+", "N", name), []).append(float(value))
    out = lines[:1]
    for line in lines[1:]:
        name, value = line.split("\t")
        kind = sorted(kinds[re.sub(r"\d+", "N", name)])
        out.append(f"{name}\t{max(float(value), 0.1 * kind[len(kind) // 2]):.6g}")
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--imatrix")
    p.add_argument("--type", default="iq2_xs")
    p.add_argument("--folder")
    p.add_argument("out")
    args = p.parse_args()
    listing = call(args.program, "inspect", args.model)
    layers = sorted({int(n) for n in re.findall(r"\bblk\.(\d+)\.", listing)})
    if not layers:
        sys.exit(f"{args.model}: no layers")
    names = set(re.findall(r"\b(?:blk\.\d+\.|output|token_embd|per_layer)[\w.]*", listing))
    groups = [(e.replace("{L}", str(n)), t.replace("{T}", args.type))
              for n in layers for e, t in GROUPS] + GLOBALS
    importance = ["--imatrix", args.imatrix] if args.imatrix else []
    lines = ["# group of tensors, divergence a unit of relative error"]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        ref, made = os.path.join(folder, "ref"), os.path.join(folder, "one.gguf")
        call(args.program, "kld", "-m", args.model, "-f", args.text, "--save", ref)
        for expression, kind in groups:
            if not any(re.search(expression, n) for n in names):
                continue
            report = call(args.program, "quantize", args.model, made, "--type", "bf16", "-v",
                          "--overwrite", "--tensor-type", f"{expression}={kind}",
                          *importance)
            errors = {f[0]: float(f[3]) for f in (line.split() for line in report.splitlines())
                      if len(f) == 4 and re.search(expression, f[0])}
            kl = json.loads(call(args.program, "kld", "-m", made, "-f", args.text, "--ref", ref,
                                 "--json"))["models"][0]["kl_mean"]
            total = sum(errors.values())
            factor = kl / total if total > 0 else 0
            lines.append(f"{expression}\t{factor:.6g}")
            print(f"{expression:60} {kind:8} errors {total:.4g}  KL {kl:.5f}  factor {factor:.4g}",
                  flush=True)
    lines = with_floor(lines)
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
