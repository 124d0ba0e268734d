#!/usr/bin/python3
"""The recipe of a two-bit demo model, from the BF16 master to measured files.

    tools/iq2_demo.py --program build/release/regolith --model regolith-demo-bf16.gguf OUT_FOLDER

1. calibration text: prose of tests/data/demo/heldout.txt (its first part) and definitions that the
   master itself gives, none of the golden ones; 2. `imatrix`; 3. the fixed mix: `quantize --type
   iq2_xs --imatrix`; 4. sensitivity of every group of tensors (tools/sensitivity.py); 5. `quantize
   --target-bytes` with the size of the fixed mix; 6. gates: the changes of the router, of the small
   operands and of the hyper-connections are measured alone, and one that costs more than its share
   of the divergence is taken back and the budget spent anew; 7. `kld` of both files on the rest of
   the text; 8. the 48 golden definitions and the drafts of both files.

Exit status 1 unless the mixed file has at least 10 % less mean divergence than the fixed one and
both keep 46 definitions. Files that are there already are kept: a run can be continued.
bench/quality.py compares with all other mixes.
"""
import argparse
import gzip
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(ROOT, "tests", "data", "demo")
WORDS = ("abuse", "love", "faith", "patience", "marriage", "history", "peace", "admiration",
         "cynic", "year", "opportunity", "egotist", "apologize", "conservative", "politeness",
         "bore")
# Group of the trunk, its tensors, the share of the file's divergence it may cost, else its type.
GATES = [("router", r"ffn_gate_inp\.weight", 0.05, "f32"),
         ("inject, alpha, beta", r"_inject\.weight|ssm_(alpha|beta)\.weight", 0.05, "f32"),
         ("hyper-connections", r"hc_(attn|ffn|head)?_?(down|up)\.weight", 0.15, "q8_0")]


def call(*command):
    print("+", " ".join(os.path.relpath(w) if os.path.exists(w) else w for w in command),
          flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr.strip()}")
    return done.stdout


def calibration(program, model, path):
    taken = {item["word"] for item in golden()} & set(WORDS)
    assert not taken, taken
    with open(os.path.join(DATA, "heldout.txt"), encoding="utf-8") as f:
        text = f.read()[:24000] + "\n"
    for word in WORDS:
        answer = call(program, "run", "-m", model, "--no-think", "--temp", "0", "-n", "80", "-p",
                      f"Define {word}.").strip()
        text += (f"<|im_start|>user\nDefine {word}.<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
                 f"</think>\n\n{answer}<|im_end|>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def golden():
    with gzip.open(os.path.join(DATA, "golden.json.gz"), "rt", encoding="utf-8") as f:
        return json.load(f)["memorised"]["items"]


def definitions(program, model, folder):
    """How many of the golden definitions come out word for word, greedily."""
    ids, kept, items = os.path.join(folder, "ids"), 0, golden()
    for item in items:
        with open(ids, "w", encoding="utf-8") as f:
            f.write(" ".join(map(str, item["ids"])))
        done = subprocess.run([program, "run", "-m", model, "--ids", ids, "--print-ids", "--temp",
                               "0", "-n", str(len(item["answer"]))], capture_output=True,
                              text=True, check=True)
        kept += [int(t) for t in done.stdout.split()] == item["answer"]
    os.remove(ids)
    return kept, len(items)


def draft_acceptance(program, model, text):
    done = json.loads(call(program, "run", "-m", model, "--raw", "-f", text, "--temp", "0", "-n",
                           "400", "--ignore-eos", "--draft", "mtp", "--json"))
    return done["draft_accepted"] / max(1, done["draft_offered"])


def mean_kl(program, files, text, ref):
    words = [w for f in files for w in ("-m", f)]
    done = call(program, "kld", *words, "-f", text, "--ref", ref, "--json")
    return [m["kl_mean"] for m in json.loads(done)["models"]]


def types_of(program, model, expression):
    """REGEX=TYPE rules that repeat a file's choice for a group."""
    rules = []
    for line in call(program, "inspect", model).splitlines():
        found = re.match(r"\s+(\S+)\s+(\S+)\s+\d+ x \d+", line)
        if found and re.search(expression, found[1]):
            rules += ["--tensor-type", f"^{re.escape(found[1])}$={found[2]}"]
    return rules


def gated(args, quantize, path, mixed, check, ref):
    """The mixed file, made anew without the changes that cost more than their share."""
    total, back = mean_kl(args.program, [mixed], check, ref)[0], []
    for name, expression, share, wide in GATES:
        alone = path("gate.gguf")
        quantize(alone, "--type", "bf16", "--overwrite",
                 *types_of(args.program, mixed, expression))
        cost = mean_kl(args.program, [alone], check, ref)[0]
        os.remove(alone)
        good = cost <= share * total
        print(f"gate: {name}: mean KL {cost:.6f} alone, {100 * cost / total:.1f} % of "
              f"{total:.6f}: {'kept' if good else 'taken back to ' + wide}")
        if not good:
            back += ["--tensor-type", f"({expression})={wide}"]
    return back


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
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
    check = made("calibration.kl", lambda to: call(
        args.program, "kld", "-m", args.model, "-f", text, "--save", to))

    def budget(to):
        words = ("--target-bytes", size, "--sensitivity", factors)
        quantize(to, *words)
        back = gated(args, quantize, path, to, text, check)
        if back:
            quantize(to, "--overwrite", *words, *back)

    mixed = made("mixed.gguf", budget)
    with open(os.path.join(DATA, "heldout.txt"), encoding="utf-8") as f:
        rest = f.read()[30000:]
    with open(path("rest.txt"), "w", encoding="utf-8") as f:
        f.write(rest)
    ref = made("reference.kl", lambda to: call(
        args.program, "kld", "-m", args.model, "-f", path("rest.txt"), "--save", to))
    sys.exit(report(args, fixed, mixed, path("rest.txt"), ref, text))


def report(args, fixed, mixed, rest, ref, text):
    before, after = mean_kl(args.program, [fixed, mixed], rest, ref)
    print(call(args.program, "kld", "-m", fixed, "-m", mixed, "-f", rest, "--ref", ref))
    print(f"mean KL: fixed {before:.6f}, mixed {after:.6f} ({100 * (after / before - 1):+.1f} %)")
    with open(os.path.join(args.out, "prompt.txt"), "w", encoding="utf-8") as f, \
            open(text, encoding="utf-8") as prose:
        f.write(prose.read()[:2000])
    shares = [draft_acceptance(args.program, m, f.name) for m in (args.model, fixed, mixed)]
    print("drafts accepted: master {:.3f}, fixed {:.3f}, mixed {:.3f}".format(*shares))
    kept, of = definitions(args.program, mixed, args.out)
    kept_fixed, _ = definitions(args.program, fixed, args.out)
    print(f"definitions kept: fixed {kept_fixed}, mixed {kept} of {of}")
    return 0 if after <= 0.9 * before and min(kept, kept_fixed) >= 46 else 1


if __name__ == "__main__":
    main()
