#!/usr/bin/python3
"""quantize through the program: quantize_tool_test.py PROGRAM"""
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
from gguf_read import Gguf  # noqa: E402
from tool import Tool, check, finish, killed, same_metadata, small_files  # noqa: E402

TINY = os.path.join(HERE, "data", "tiny")


def test_quantize(tool, folder):
    model = os.path.join(folder, "m.gguf")
    done = tool("synth", model, "--preset", "tiny", "--set", "hidden=256", "--set", "ff=256",
                "--set", "layers=2", "--set", "experts=4", "--default-type", "f32", "--seed", "5")
    check("synth", done.returncode == 0, done.stderr)
    one, two = os.path.join(folder, "1.gguf"), os.path.join(folder, "2.gguf")
    for mix in ("iq2_xs", "q4_K", "iq1_s", "q2_0", "iq3_s", "mxfp4", "q8_0", "bf16"):
        a = tool("quantize", model, one, "--type", mix, "--threads", "1", "--overwrite")
        b = tool("quantize", model, two, "--type", mix, "--threads", "5", "--overwrite")
        check(mix, a.returncode == 0 and b.returncode == 0, a.stderr + b.stderr)
        with open(one, "rb") as f, open(two, "rb") as g:
            check(mix + ": threads", f.read() == g.read())
        check(mix + ": loads", tool("logits", "-m", one, "--ids", "-", "--hash",
                                    input="1 2 3 4 5").returncode == 0)
    same_metadata("quantize", model, one)
    done = tool("quantize", model, two, "--type", "q8_0", "--overwrite", "-v", "--tensor-type",
                "ffn_down_exps=iq4_nl", "--tensor-type", "^token_embd=q6_K")
    types = {t.name: t.type_name for t in Gguf(two).tensors}
    check("rules", types["blk.0.ffn_down_exps.weight"] == "IQ4_NL"
          and types["token_embd.weight"] == "Q6_K" and types["output.weight"] == "Q8_0"
          and types["output_hc_norm.weight"] == "F32", done.stdout)
    done = tool("quantize", os.path.join(TINY, "a-f32.gguf"), two, "--type", "q4_K", "--overwrite")
    check("fallback is said", done.returncode == 0 and "do not fit" in done.stdout, done.stdout)
    with open(two, "rb") as f:
        before = f.read()
    for words, text in ((("--type", "nothing"), "unknown type"), ((), "--type"),
                        (("--type", "q8_0"), "exists"),
                        (("--type", "q8_0", "--tensor-type", "x=i32", "--overwrite"), "rule"),
                        (("--type", "q8_0", "--imatrix", model, "--overwrite"), "importance"),
                        (("--target-bytes", "10K", "--overwrite"), "cannot be reached")):
        done = tool("quantize", model, two, *words)
        check(f"refused {words}", done.returncode in (1, 2) and text in done.stderr
              and len(done.stderr.strip().splitlines()) == 1, done.stderr)
    with open(two, "rb") as f:
        check("refusals leave the file", f.read() == before)
    check("no parts are left", not [n for n in os.listdir(folder) if ".part" in n])
    check("list", "iq2_xs" in tool("quantize", "--list").stdout)

    full = os.path.join(folder, "full.gguf")
    done = tool("quantize", model, full, "--type", "q8_0", preexec_fn=small_files(200000))
    check("full drive", done.returncode == 1 and "File too large" in done.stderr, done.stderr)
    check("full drive leaves nothing", not [n for n in os.listdir(folder) if "full" in n])
    return model


def test_killed(tool, folder, model):
    out = os.path.join(folder, "killed.gguf")
    killed(tool, "quantize", ["quantize", model, out, "--type", "iq2_s", "--threads", "1"], out)


def test_budget(tool, folder):
    model, out = os.path.join(folder, "m.gguf"), os.path.join(folder, "budget.gguf")
    sizes = []

    def size_of(mix):
        made = tool("quantize", model, out, "--type", mix, "--overwrite")
        check(mix, made.returncode == 0, made.stderr)
        return os.path.getsize(out)

    low = size_of("iq1_s")
    for size in (low * 13 // 10, size_of("q4_K")):
        done = tool("quantize", model, out, "--target-bytes", str(size), "--overwrite")
        check("budget", done.returncode == 0, done.stderr)
        sizes.append(os.path.getsize(out))
        check("budget is kept and used", 0.9 * size <= sizes[-1] <= size, (size, sizes[-1]))
        check("budget loads", tool("logits", "-m", out, "--ids", "-", "--hash",
                                   input="1 2 3 4 5").returncode == 0)
    table = os.path.join(folder, "factors")
    with open(table, "w", encoding="utf-8") as f:
        f.write("# test\n^blk\\.0\\..*_exps\t1000\n_exps\t0.001\n")
    done = tool("quantize", model, out, "--target-bytes", str(2 * low), "--overwrite",
                "--sensitivity", table)
    bits = {t.name: t.size_bytes * 8 / np.prod([float(d) for d in t.dims])
            for t in Gguf(out).tensors}
    check("factors steer", done.returncode == 0 and bits["blk.0.ffn_gate_exps.weight"]
          > 2 * bits["blk.1.ffn_gate_exps.weight"], bits)
    # Rows of 320, as the release's connections have: the formats of 256 do not fit.
    wide = os.path.join(folder, "wide.gguf")
    done = tool("synth", wide, "--preset", "tiny", "--set", "rank=320", "--set", "layers=2",
                "--default-type", "f32")
    check("rank 320", done.returncode == 0, done.stderr)
    with open(table, "w", encoding="utf-8") as f:
        f.write("hc_.*_(down|up)\t0.1\nffn_gate_inp\t1\n_exps\t1\n.\t0.1\n")
    seen = set()
    for share in (0.22, 0.27):
        done = tool("quantize", wide, out, "--overwrite", "--sensitivity", table, "--target-bytes",
                    str(int(os.path.getsize(wide) * share)))
        check("rank 320: budget", done.returncode == 0, done.stderr)
        types = {t.name: t.type_name for t in Gguf(out).tensors}
        seen |= {types[n] for n in types if "hc_" in n and n.endswith("_up.weight")}
    check("connections of 5 to 6 bits", seen & {"Q5_0", "Q5_1"}, seen)
    check("router of 16 bits", types["blk.0.ffn_gate_inp.weight"] in ("BF16", "F32"), types)
    with open(table, "w", encoding="utf-8") as f:
        f.write("nonsense\n")
    done = tool("quantize", model, out, "--target-bytes", str(2 * low), "--overwrite",
                "--sensitivity", table)
    check("bad factors", done.returncode == 1 and "line 1" in done.stderr, done.stderr)


def main():
    tool = Tool(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        model = test_quantize(tool, folder)
        test_killed(tool, folder, model)
        test_budget(tool, folder)
    finish()


if __name__ == "__main__":
    main()
