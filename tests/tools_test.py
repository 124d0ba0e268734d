#!/usr/bin/python3
"""convert, imatrix and the manual through the program: tools_test.py PROGRAM"""
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
import hf_write  # noqa: E402
from gguf_read import Gguf  # noqa: E402
from tool import (Tool, check, finish, killed, payloads, same_metadata,  # noqa: E402
                  same_tensors, small_files)

TINY = os.path.join(HERE, "data", "tiny")
CHECKPOINTS = os.path.join(HERE, "..", "..", "shared", "models", "tiny-hf")


# ---- imatrix ------------------------------------------------------------------------------------

def test_imatrix(tool, folder):
    model = os.path.join(TINY, "a-f32.gguf")
    text, out = os.path.join(folder, "text"), os.path.join(folder, "im.gguf")
    with open(text, "w", encoding="utf-8") as f:
        f.write("the cat and the dog sat on the mat. " * 20)
    done = tool("imatrix", "-m", model, "-f", text, "--ctx", "64", "--kernels", "ref", out)
    check("imatrix", done.returncode == 0, done.stderr)
    n_token = int(done.stdout.split()[0])
    data = payloads(out)
    value = {k: np.frombuffer(v[2], "<f4").reshape(v[1][1], v[1][0]) for k, v in data.items()}
    used = Gguf(model).kv["qwen4exp.expert_used_count"]
    counts = value["blk.1.ffn_down_exps.weight.counts"]
    check("expert counts", counts.sum() == n_token * used, (counts.sum(), n_token))
    check("trunk counts", value["blk.3.attn_q.weight.counts"][0, 0] == n_token)
    check("q and k see the same", np.array_equal(value["blk.3.attn_q.weight.in_sum2"],
                                                 value["blk.3.attn_k.weight.in_sum2"]))
    gate = value["blk.1.ffn_gate_exps.weight.in_sum2"]
    shared = value["blk.1.ffn_gate_shexp.weight.in_sum2"]
    check("experts add up", np.allclose(gate.sum(0), used * shared[0], rtol=1e-4))
    dump = os.path.join(folder, "dump")
    os.makedirs(dump)
    ids = os.path.join(folder, "ids")
    with open(ids, "w", encoding="utf-8") as f:
        f.write(tool("tokenize", "-m", model, "-f", text, "--special").stdout)
    few = os.path.join(folder, "few.gguf")
    check("few", tool("imatrix", "-m", model, "-f", text, "--kernels", "ref", "-n", "32",
                      few).returncode == 0)
    with open(ids, encoding="utf-8") as f:
        first = f.read().split()[:32]
    with open(ids, "w", encoding="utf-8") as f:
        f.write(" ".join(first))
    check("dump", tool("logits", "-m", model, "--ids", ids, "--kernels", "ref", "--dump",
                       dump).returncode == 0)
    with open(os.path.join(dump, "index.tsv"), encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f][1:]
    file = next(r[4] for r in rows if r[0] == "mixed_ffn" and r[1] == "1")
    u = np.fromfile(os.path.join(dump, file), "<f4").reshape(len(first), -1)
    few_value = np.frombuffer(payloads(few)["blk.1.ffn_gate_shexp.weight.in_sum2"][2], "<f4")
    check("sums of squares", np.allclose(few_value, (u.astype(np.float64) ** 2).sum(0), rtol=1e-5))
    with open(out, "rb") as f:
        whole = f.read()
    again = os.path.join(folder, "again.gguf")
    tool("imatrix", "-m", model, "-f", text, "--ctx", "64", "--kernels", "ref", "--chunk", "64",
         "--threads", "3", again)
    with open(again, "rb") as f:
        check("imatrix repeats", f.read() == whole)
    small = os.path.join(folder, "small.gguf")
    done = tool("quantize", model, small, "--type", "q4_0", "--imatrix", out)
    check("with importance", done.returncode == 0
          and Gguf(small).kv["quantize.imatrix.file"] == "im.gguf", done.stderr)
    plain = os.path.join(folder, "plain.gguf")
    tool("quantize", model, plain, "--type", "q4_0")
    a, b = payloads(small), payloads(plain)
    check("importance changes codes", a["blk.1.ffn_gate_exps.weight"]
          != b["blk.1.ffn_gate_exps.weight"])


# ---- convert ------------------------------------------------------------------------------------

def test_convert(tool, folder):
    a, c = (os.path.join(TINY, n) for n in ("a-f32.gguf", "c-f32.gguf"))
    out = os.path.join(folder, "converted.gguf")
    forms = [("plain", a, {}, {}), ("files", c, {"files": 4, "merges_as_text": True}, {}),
             ("fused", a, {"fused": True, "prefix": "model.language_model.",
                           "text_config": True}, {}),
             ("shards", a, {"shards": 16, "files": 3}, {}), ("whole table", a, {"shards": 0}, {})]
    for what, gguf, how, _ in forms:
        source = os.path.join(folder, "hf-" + what.replace(" ", "-"))
        hf_write.write(gguf, source, **how)
        done = tool("convert", source, out, "--overwrite", "--threads", "2")
        check(what, done.returncode == 0, done.stderr)
        same_tensors(what, out, gguf)
        same_metadata(what, out, gguf)
    shutil_parts = tool("convert", source, os.path.join(folder, "parts.gguf"), "--split", "3")
    check("parts", shutil_parts.returncode == 0, shutil_parts.stderr)
    first = os.path.join(folder, "parts-00001-of-00003.gguf")
    hashes = [tool("logits", "-m", m, "--ids", os.path.join(TINY, "a-f32.ids"), "--hash").stdout
              for m in (out, first)]
    check("parts load", hashes[0] and hashes[0] == hashes[1], hashes)

    mtp = os.path.join(folder, "mtp.gguf")
    check("mtp model", tool("synth", mtp, "--preset", "tiny", "--set", "mtp=1", "--default-type",
                            "f32", "--overwrite").returncode == 0)
    source = os.path.join(folder, "hf-mtp")
    hf_write.write(mtp, source)
    done = tool("convert", source, out, "--overwrite")
    check("mtp", done.returncode == 0 and "draft block" in done.stdout, done.stderr)
    loose = {k: v[:2] for k, v in payloads(out).items()}
    check("mtp names", loose == {k: v[:2] for k, v in payloads(mtp).items()})
    done = tool("convert", source, out, "--overwrite", "--no-mtp")
    kv = Gguf(out).kv
    check("no mtp", done.returncode == 0 and "qwen4exp.nextn_predict_layers" not in kv
          and len(kv["qwen4exp.attention.compress_ratios"]) == kv["qwen4exp.block_count"])

    source = os.path.join(folder, "hf-f8")
    meant = hf_write.write(a, source, f8=True)
    done = tool("convert", source, out, "--overwrite", "--type", "f32")
    check("f8", done.returncode == 0, done.stderr)
    got = payloads(out)
    for name, to in (("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight"),
                     ("model.layers.1.mlp.shared_expert.up_proj.weight",
                      "blk.1.ffn_up_shexp.weight"),
                     ("model.layers.2.mlp.experts.1.down_proj.weight", None)):
        if to:
            x = np.frombuffer(got[to][2], "<f4").reshape(meant[name].shape)
        else:
            stack = np.frombuffer(got["blk.2.ffn_down_exps.weight"][2], "<f4")
            x = stack.reshape(-1, *meant[name].shape)[1]
        check("f8 exact " + name, np.array_equal(x, meant[name]))

    source = os.path.join(folder, "hf-plain")
    for what, how, text in (("missing", {"drop": "layers.2.mlp.gate"}, "is missing"),
                            ("no expert", {"drop": r"experts\.5\.up"}, "is missing"),
                            ("no scale", {"f8": True, "drop": None}, "scales")):
        broken = os.path.join(folder, "hf-broken")
        hf_write.write(a, broken, **how)
        if what == "no scale":
            path = os.path.join(broken, "model.safetensors")
            with open(path, "rb") as f:
                raw = f.read()
            with open(path, "wb") as f:
                f.write(raw.replace(b"q_proj.weight_scale_inv", b"q_proj.weight_scale_xxx"))
        done = tool("convert", broken, os.path.join(folder, "broken.gguf"))
        check(what, done.returncode == 1 and text in done.stderr
              and len(done.stderr.strip().splitlines()) == 1, done.stderr)
    with open(os.path.join(source, "model.safetensors"), "r+b") as f:
        f.truncate(os.path.getsize(os.path.join(source, "model.safetensors")) // 2)
    done = tool("convert", source, os.path.join(folder, "broken.gguf"))
    check("cut", done.returncode == 1 and "range" in done.stderr, done.stderr)
    check("nothing is left", not [n for n in os.listdir(folder) if "broken.gguf" in n])


def test_checkpoints(tool, folder):
    """Checkpoints of another library, where they are at hand."""
    if not os.path.isdir(CHECKPOINTS):
        print("no checkpoints at hand")
        return
    out = os.path.join(folder, "checkpoint.gguf")
    for name, twin, words in (
            ("a-f32", os.path.join(TINY, "a-f32.gguf"), ()),
            ("c-f32", os.path.join(TINY, "c-f32.gguf"), ()),
            ("b-f16", os.path.join(TINY, "b-f16.gguf"),
             ("--type", "f16", "--tensor-type", "^token_embd=q8_0", "--tensor-type",
              r"indexer\..*proj=f32")),
            ("a-bf16", os.path.join(CHECKPOINTS, "a-bf16.gguf"), ())):
        done = tool("convert", os.path.join(CHECKPOINTS, name), out, "--overwrite", *words)
        check(name, done.returncode == 0, done.stderr)
        same_tensors(name, out, twin)
        same_metadata(name, out, twin)
        ids, ref = (os.path.join(os.path.dirname(twin), f"{name}.{e}") for e in ("ids", "ref.f32"))
        done = tool("logits", "-m", out, "--ids", ids, "--kernels", "ref", "--kv", "f32", "--ref",
                    ref)
        error = re.search(r"max error ([0-9.e+-]+)", done.stdout)
        check(name + " logits", error and float(error[1]) < 1e-4, done.stdout)


def test_interrupted(tool, folder):
    model, source = os.path.join(folder, "large.gguf"), os.path.join(folder, "hf-large")
    done = tool("synth", model, "--preset", "tiny", "--set", "hidden=256", "--set", "ff=256",
                "--set", "layers=3", "--set", "experts=16", "--default-type", "f32")
    check("large", done.returncode == 0, done.stderr)
    hf_write.write(model, source)
    place = os.path.join(folder, "interrupted")
    os.makedirs(place)
    out = os.path.join(place, "out.gguf")
    killed(tool, "convert", ["convert", source, out, "--type", "q4_K", "--threads", "1"], out)
    os.remove(out)
    done = tool("convert", source, out, preexec_fn=small_files(1000000))
    check("convert: full drive", done.returncode == 1 and "File too large" in done.stderr
          and len(done.stderr.strip().splitlines()) == 1, done.stderr)
    check("convert: full drive leaves nothing", not os.listdir(place), os.listdir(place))


# ---- help ---------------------------------------------------------------------------------------

def test_manual(tool, folder):
    """Pages and completions name what --help names."""
    overview = tool("--help").stdout
    commands = [w for w in ("run", "kld", "quantize", "convert", "imatrix", "pull", "trace replay")]
    complete = tool("completion", "bash").stdout
    path = os.path.join(folder, "complete")
    with open(path, "w", encoding="utf-8") as f:
        f.write(complete)
    check("bash takes it", subprocess.run(["bash", "-n", path]).returncode == 0)
    for command in commands:
        check(command + " is listed", command in overview)
        page = tool("manual", command.replace(" ", "-"))
        check(command + " has a page", page.returncode == 0 and page.stdout.startswith(".TH"))
        for flag in re.findall(r"^ .*--([a-z-]+)", tool(*command.split(), "--help").stdout, re.M):
            check(f"{command} --{flag}", "\\-\\-" + flag.replace("-", "\\-") in page.stdout
                  and f"--{flag}" in complete)
    check("fish", "-l imatrix -r" in tool("completion", "fish").stdout)
    check("no such page", tool("manual", "nothing").returncode == 2)


def main():
    tool = Tool(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        test_manual(tool, folder)
        test_imatrix(tool, folder)
        test_convert(tool, folder)
        test_checkpoints(tool, folder)
        test_interrupted(tool, folder)
    finish()


if __name__ == "__main__":
    main()
