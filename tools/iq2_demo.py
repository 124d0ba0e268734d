#!/usr/bin/python3
"""The recipe of a two-bit demo model, from the BF16 master to measured files.

    tools/iq2_demo.py --program build/release/regolith --model regolith-demo-bf16.gguf OUT_FOLDER

1. calibration text: prose of tests/data/demo/heldout.txt (its first part) and definitions that the
   master itself gives; 2. `imatrix`; 3. the fixed mix: `quantize --type iq2_xs --imatrix`;
4. sensitivity of every group of tensors (tools/sensitivity.py); 5. `quantize --target-bytes` with
the size of the fixed mix; 6. `kld` of every mix and of both files on the rest of the text; 7. the
48 golden definitions on both files. Exit status 1 unless the mixed file has at least 10 % less mean
divergence than the fixed one and keeps 46 definitions. Files that are there already are kept.
"""
import argparse
import gzip
import json
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(ROOT, "tests", "data", "demo")
WORDS = ("wit", "love", "faith", "patience", "marriage", "history", "peace", "admiration", "cynic",
         "year", "opportunity", "egotist", "apologize", "conservative", "politeness", "bore")
MIXES = ("q8_0", "q6_K", "q5_K", "q4_K", "iq4_nl", "iq4_xs", "mxfp4", "q3_K", "iq3_s", "iq3_xxs",
         "q2_K", "iq2_s", "iq2_xs", "iq2_xxs", "q2_0", "iq1_s")


def call(*command):
    print("+", " ".join(os.path.relpath(w) if os.path.exists(w) else w for w in command),
          flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr.strip()}")
    return done.stdout


def calibration(program, model, path):
    with open(os.path.join(DATA, "heldout.txt"), encoding="utf-8") as f:
        text = f.read()[:24000] + "\n"
    for word in WORDS:
        answer = call(program, "run", "-m", model, "--no-think", "--temp", "0", "-n", "80", "-p",
                      f"Define {word}.").strip()
        text += (f"<|im_start|>user\nDefine {word}.<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
                 f"</think>\n\n{answer}<|im_end|>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def definitions(program, model, folder):
    with gzip.open(os.path.join(DATA, "golden.json.gz"), "rt", encoding="utf-8") as f:
        items = json.load(f)["memorised"]["items"]
    ids, kept = os.path.join(folder, "ids"), 0
    for item in items:
        with open(ids, "w", encoding="utf-8") as f:
            f.write(" ".join(map(str, item["ids"])))
        done = subprocess.run([program, "run", "-m", model, "--ids", ids, "--print-ids", "--temp",
                               "0", "-n", str(len(item["answer"]))], capture_output=True,
                              text=True, check=True)
        kept += [int(t) for t in done.stdout.split()] == item["answer"]
    os.remove(ids)
    return kept, len(items)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--all", action="store_true", help="measure all named mixes too")
    p.add_argument("out")
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)

    def path(name):
        return os.path.join(args.out, name)

    def made(name, make):
        if not os.path.exists(path(name)):
            make(path(name))
        return path(name)

    def quantize(to, *words):
        call(args.program, "quantize", args.model, to, "--imatrix", imatrix, *words)

    text = made("calibration.txt", lambda to: calibration(args.program, args.model, to))
    imatrix = made("imatrix.gguf", lambda to: call(
        args.program, "imatrix", "-m", args.model, "-f", text, "--kernels", "ref", to))
    fixed = made("iq2_xs.gguf", lambda to: quantize(to, "--type", "iq2_xs"))
    factors = made("sensitivity.tsv", lambda to: call(
        sys.executable, os.path.join(ROOT, "tools", "sensitivity.py"), "--program", args.program,
        "--model", args.model, "--text", text, "--imatrix", imatrix, to))
    size = str(os.path.getsize(fixed))
    mixed = made("mixed.gguf", lambda to: quantize(to, "--target-bytes", size, "--sensitivity",
                                                   factors))
    with open(os.path.join(DATA, "heldout.txt"), encoding="utf-8") as f:
        rest = f.read()[30000:]
    with open(path("rest.txt"), "w", encoding="utf-8") as f:
        f.write(rest)
    ref = made("reference.kl", lambda to: call(
        args.program, "kld", "-m", args.model, "-f", path("rest.txt"), "--save", to))
    files = [fixed, mixed]
    if args.all:
        for mix in MIXES:
            if mix != "iq2_xs":
                files.append(made(f"{mix}.gguf", lambda to, m=mix: quantize(to, "--type", m)))
    models = [w for f in files[:16] for w in ("-m", f)]
    print(call(args.program, "kld", *models, "-f", path("rest.txt"), "--ref", ref))
    figures = json.loads(call(args.program, "kld", "-m", fixed, "-m", mixed, "-f",
                              path("rest.txt"), "--ref", ref, "--json"))["models"]
    before, after = (m["kl_mean"] for m in figures)
    kept, of = definitions(args.program, mixed, args.out)
    kept_fixed, _ = definitions(args.program, fixed, args.out)
    print(f"mean KL: fixed {before:.6f}, mixed {after:.6f} ({100 * (after / before - 1):+.1f} %)")
    print(f"definitions kept: fixed {kept_fixed}, mixed {kept} of {of}")
    sys.exit(0 if after <= 0.9 * before and kept >= 46 else 1)


if __name__ == "__main__":
    main()
