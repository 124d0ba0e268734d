#!/usr/bin/python3
"""kld_test.py BINARY: `regolith kld` against numpy on the logits of `logits --out`."""
import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = os.path.join(ROOT, "tests", "data", "tiny")
BINARY = ""
WINDOW = 40
HEADER_BYTES = 64


def model(name):
    return os.path.join(TINY, name + ".gguf")


def start(*args):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=600, check=False)


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def best(x, k):
    """The best k of each row, ties by lower index."""
    return np.argsort(-x, axis=1, kind="stable")[:, :k]


class Kld(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.text = cls.path("text.txt")
        with open(os.path.join(TINY, "tok.txt"), "rb") as f:
            text = f.read()
        with open(cls.text, "wb") as f:
            f.write(text[:390])
        cls.ids = cls.output("tokenize", "-m", model("a-f32"), "-f", cls.text).split()
        cls.ref = cls.path("a.ref")
        cls.output("kld", "-m", model("a-f32"), "-f", cls.text, "--save", cls.ref, "--ctx", WINDOW)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.holder.name, name)

    @staticmethod
    def output(*args):
        run = start(*args)
        if run.returncode:
            raise AssertionError(f"{args}: exit {run.returncode}: {run.stderr}")
        return run.stdout

    def kld(self, *args):
        return json.loads(self.output("kld", "-f", self.text, "--json", *args))

    def logits(self, name, ids):
        ids_file, out = self.path("w.ids"), self.path("w.f32")
        with open(ids_file, "w", encoding="ascii") as f:
            f.write(" ".join(ids))
        self.output("logits", "-m", model(name), "--ids", ids_file, "--out", out)
        return np.fromfile(out, "<f4").reshape(len(ids), -1)

    def windows(self, name):
        """Logits as kld sees them: each window from a fresh state."""
        parts = [self.logits(name, self.ids[i:i + WINDOW])
                 for i in range(0, len(self.ids), WINDOW)]
        return np.concatenate(parts)

    def fails(self, words, *args, status=1):
        run = start("kld", *args)
        self.assertEqual(run.returncode, status, run.stderr)
        self.assertEqual(run.stdout, "")
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertIn(words, run.stderr)

    def test_windows_leave_a_rest(self):
        self.assertGreater(len(self.ids), 2 * WINDOW)
        self.assertNotEqual(len(self.ids) % WINDOW, 0)

    def test_itself(self):
        figures = self.kld("-m", model("a-f32"), "--ref", self.ref)
        self.assertEqual((figures["tokens"], figures["ctx"]), (len(self.ids), WINDOW))
        result = figures["models"][0]
        for key in ("kl_mean", "kl_median", "kl_p99", "kl_max"):
            self.assertEqual(result[key], 0, key)
        self.assertEqual((result["top1_agreement"], result["top5_agreement"]), (1, 1))
        self.assertEqual(result["ppl"], result["ppl_ref"])

    def test_against_numpy(self):
        table = self.path("out.csv")
        result = self.kld("-m", model("a-mix"), "--ref", self.ref, "--csv", table)["models"][0]
        r, x = self.windows("a-f32"), self.windows("a-mix")
        lr, lx = log_softmax(r), log_softmax(x)
        kl = (np.exp(lr) * (lr - lx)).sum(1)
        self.assertGreater(kl.mean(), 1e-4)
        rank = sorted(kl)
        top1 = best(r, 1)[:, 0] == best(x, 1)[:, 0]
        top5 = np.array([len(set(a) & set(b)) / 5 for a, b in zip(best(r, 5), best(x, 5))])
        self.assertAlmostEqual(result["kl_mean"], kl.mean(), 9)
        self.assertAlmostEqual(result["kl_median"], np.median(kl), 9)
        self.assertAlmostEqual(result["kl_p99"], rank[-(-len(kl) * 99 // 100) - 1], 9)
        self.assertAlmostEqual(result["kl_max"], kl.max(), 9)
        self.assertAlmostEqual(result["top1_agreement"], top1.mean(), 9)
        self.assertAlmostEqual(result["top5_agreement"], top5.mean(), 9)
        ids = np.array(self.ids, int)
        scored = [i for i in range(len(ids) - 1) if (i + 1) % WINDOW]
        nll = -lx[scored, ids[[i + 1 for i in scored]]]
        self.assertAlmostEqual(result["ppl"] / np.exp(nll.mean()), 1, 9)
        with open(table, encoding="ascii", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([row["token"] for row in rows], self.ids)
        self.assertEqual([int(row["position"]) for row in rows], list(range(len(ids))))
        np.testing.assert_allclose([float(row["kl"]) for row in rows], kl, atol=1e-8)
        self.assertEqual([row["top1"] == "1" for row in rows], list(top1))
        np.testing.assert_allclose([float(row["top5"]) for row in rows], top5)
        self.assertEqual([i for i, row in enumerate(rows) if row["nll"]], scored)
        np.testing.assert_allclose([float(rows[i]["nll"]) for i in scored], nll, atol=1e-7)

    def test_top_k(self):
        table = self.path("top.csv")
        r, x = self.windows("a-f32"), self.windows("a-mix")
        seen = set()
        for k in (2, 17, 64):
            figures = self.kld("-m", model("a-mix"), "--ref", self.ref, "--top-k", k, "--csv",
                               table)
            share = np.array([len(set(a) & set(b)) / k for a, b in zip(best(r, k), best(x, k))])
            self.assertEqual(figures["top_k"], k)
            self.assertAlmostEqual(figures["models"][0][f"top{k}_agreement"], share.mean(), 9)
            with open(table, encoding="ascii", newline="") as f:
                rows = [float(row[f"top{k}"]) for row in csv.DictReader(f)]
            np.testing.assert_allclose(rows, share, atol=1e-6)
            seen.add(round(share.mean(), 4))
        self.assertEqual(len(seen), 3)
        text = self.output("kld", "-f", self.text, "-m", model("a-mix"), "--ref", self.ref,
                           "--top-k", 17)
        self.assertIn("top-17 %", text)

    def test_perplexity_agrees(self):
        ppl = json.loads(self.output("ppl", "-m", model("a-f32"), "-f", self.text, "--ctx", WINDOW,
                                     "--json"))
        result = self.kld("-m", model("a-f32"), "--ref", self.ref)["models"][0]
        self.assertAlmostEqual(result["ppl"] / ppl["ppl"], 1, 6)

    def test_raw_reference(self):
        raw = self.path("raw.f32")
        self.logits("a-f32", self.ids).tofile(raw)
        figures = self.kld("-m", model("a-f32"), "--ref", raw)
        self.assertEqual(figures["ctx"], len(self.ids))
        self.assertEqual(figures["models"][0]["kl_max"], 0)
        self.windows("a-f32").tofile(raw)
        figures = self.kld("-m", model("a-f32"), "--ref", raw, "--ctx", WINDOW)
        self.assertEqual(figures["models"][0]["kl_max"], 0)
        bad = self.windows("a-f32")
        bad[7, 3] = np.nan
        bad.tofile(raw)
        self.fails("logit 3 of token 7 is not finite", "-m", model("a-f32"), "-f", self.text,
                   "--ref", raw, "--ctx", WINDOW)

    def test_several_models(self):
        figures = self.kld("-m", model("a-f32"), "-m", model("a-mix"), "--ref", self.ref)
        same, mix = figures["models"]
        self.assertEqual([same["model"], mix["model"]], [model("a-f32"), model("a-mix")])
        self.assertEqual(same["kl_mean"], 0)
        self.assertGreater(mix["kl_mean"], 0)
        for result in figures["models"]:
            self.assertEqual(result["file_bytes"], os.path.getsize(result["model"]))
            self.assertGreater(result["tok_s"], 0)
        self.assertLess(mix["bytes_per_weight"], same["bytes_per_weight"])
        self.assertGreater(same["bytes_per_weight"], 4)  # f32 and a header
        table = self.output("kld", "-f", self.text, "-m", model("a-f32"), "-m", model("a-mix"),
                            "--ref", self.ref)
        self.assertIn(model("a-mix"), table.splitlines()[-1])

    def test_split_model(self):
        part = os.path.join(TINY, "a-fused-00001-of-00003.gguf")
        result = self.kld("-m", part, "--ref", self.ref)["models"][0]
        sizes = sum(os.path.getsize(part.replace("00001-of", f"0000{i}-of")) for i in (1, 2, 3))
        self.assertEqual(result["file_bytes"], sizes)

    def test_streamed_equals_resident(self):
        result = self.kld("-m", model("a-f32"), "--ref", self.ref, "--arena-experts", 4)
        self.assertEqual(result["models"][0]["kl_max"], 0)

    def test_wrong_reference(self):
        a = ("-m", model("a-f32"), "-f", self.text)
        self.fails("vocabulary of 512 tokens, the model one of 320", "-m", model("c-f32"), "-f",
                   self.text, "--ref", self.ref)
        self.fails("windows of 40 tokens, not of 30", *a, "--ref", self.ref, "--ctx", 30)
        self.fails("is no saved reference", *a, "--ref", self.text)
        self.fails("cannot open", *a, "--ref", self.path("absent"))
        longer, other = self.path("longer.txt"), self.path("other.txt")
        with open(self.text, "rb") as f:
            text = f.read()
        with open(longer, "wb") as f:
            f.write(text + b" and more")
        self.fails("the text has", "-m", model("a-f32"), "-f", longer, "--ref", self.ref)
        with open(other, "wb") as f:
            f.write(b"\x00" + b"\x01" * (len(self.ids) - 1))
        self.fails("was made from other tokens", "-m", model("a-f32"), "-f", other, "--ref",
                   self.ref)

    def test_damaged_reference(self):
        with open(self.ref, "rb") as f:
            good = f.read()
        cases = [(good[:50], "header"), (good[:HEADER_BYTES], "ends at token 0"),
                 (good[:len(good) // 2], "ends at token"), (good[:-1], "ends at token")]
        for at in (9, 30, 45):
            flipped = bytearray(good)
            flipped[at] ^= 1
            cases.append((bytes(flipped), "header"))
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 0x10
        cases.append((bytes(flipped), "is damaged"))
        path = self.path("damaged.ref")
        for data, words in cases:
            with open(path, "wb") as f:
                f.write(data)
            self.fails(words, "-m", model("a-f32"), "-f", self.text, "--ref", path)

    def test_nothing_left_of_a_failed_save(self):
        out = self.path("failed.ref")
        self.fails("cannot write", "-m", model("a-f32"), "-f", self.text, "--save",
                   self.path("no/such/folder.ref"))
        empty = self.path("empty.txt")
        with open(empty, "wb"):
            pass
        self.fails("holds no tokens", "-m", model("a-f32"), "-f", empty, "--save", out)
        # Zero bytes of a model file that is none.
        self.fails("", "-m", empty, "-f", self.text, "--save", out)
        self.assertEqual([n for n in os.listdir(self.holder.name) if n.startswith("failed")], [])

    def test_usage(self):
        a = ("-m", model("a-f32"), "-f", self.text)
        self.fails("--ref FILE, --save FILE", *a, status=2)
        self.fails("--ref FILE, --save FILE", *a, "--ref", self.ref, "--save", self.ref, status=2)
        self.fails("--top-k", *a, "--ref", self.ref, "--top-k", 65, status=2)
        self.fails("--save takes one model", *a, "-m", model("a-mix"), "--save", self.ref, status=2)
        self.fails("-f TEXT is missing", "-m", model("a-f32"), "--ref", self.ref, status=2)


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()
