#!/usr/bin/python3
"""bench_test.py BINARY: keys, sums and order of `regolith bench`. Nothing here depends on speed."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = os.path.join(ROOT, "tests", "data", "tiny")
BINARY = ""
# The names that design and scripts rely on.
KEYS = """prefill_tok_s decode_tok_s ttft_ms hits misses late readahead_useful readahead_wasted
    read_bytes drive_gb_s drive_ceiling_gb_s compute_ms wait_ms handshake_ms host_ms
    arena_peak_bytes rss_peak_bytes draft_accepted draft_offered accounted_share""".split()
LAYER_KEYS = "before_router_ns phase1_ns phase2_ns wait_ns urgent_bytes late_bytes".split()
N_LAYER = 4  # of a-f32
N_USED = 3
N_EXPERT = 8
STREAMED = ("--arena-experts", "6", "--ceiling", "1.5")


def model(name):
    return os.path.join(TINY, name + ".gguf")


def start(*args):
    return subprocess.run([BINARY, "bench", *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=600, check=False)


def bench(*args, name="a-f32"):
    """The JSON object, and what was said on standard error."""
    run = start("-m", model(name), "--threads", 2, "--json", *args)
    if run.returncode:
        raise AssertionError(f"{args}: exit {run.returncode}: {run.stderr}")
    return json.loads(run.stdout), run.stderr


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


class Kernels(unittest.TestCase):
    """bench --kernels: every matrix is seen once a token, and the rows explain the time."""

    def table(self, *args):
        return bench("--kernels", "-p", 24, "-n", 12, "--reps", 2, *args)[0]

    def weights(self, phase):
        rows = [row for row in phase["kernels"] if row["kernel"] == "product"]
        self.assertTrue(all(row["gb_s"] > 0 and row["gmac_s"] > 0 for row in rows))
        return sum(row["ops"] for row in rows)

    def test_rows_explain_the_time(self):
        table = self.table()
        for name, tokens in (("prefill", 24), ("decode", 12)):
            phase = table[name]
            self.assertEqual(phase["tokens"], tokens)
            total = sum(row["ms"] for row in phase["kernels"])
            self.assertAlmostEqual(total, phase["accounted_share"] * phase["wall_ms"], delta=1e-4)
            self.assertLessEqual(phase["accounted_share"], 1.0001)
            self.assertGreater(phase["accounted_share"], 0.5)  # a tiny model, a busy machine
            for row in phase["kernels"]:
                self.assertLessEqual(row["busy_share"], 1.01, row)
            parts = {row["part"] for row in phase["kernels"]}
            self.assertLessEqual({"hyper-connections", "delta net", "attention", "experts",
                                  "head"}, parts)
        # Products are linear in the rows, but for the head (one row of a prompt) and rows of the
        # index (only where blocks are chosen).
        per_token = [self.weights(table[name]) / table[name]["tokens"]
                     for name in ("prefill", "decode")]
        self.assertLess(per_token[0], per_token[1])
        self.assertGreater(table["read_gb_s"], 0)

    def test_waits_have_a_row(self):
        rows = self.table(*STREAMED)["decode"]["kernels"]
        waits = [row for row in rows if row["kernel"] == "wait for the drive"]
        self.assertIn("experts", {row["part"] for row in waits})

    def test_kernel_set_is_still_a_flag(self):
        quick = ("-p", 4, "-n", 2, "--reps", 1)
        for words in (("--kernels", "ref"), ("--kernels=ref",), ("--kernels", "auto")):
            self.assertTrue("decode_tok_s" in bench(*words, *quick)[0])
        both = bench("--kernels", "--kernels", "ref", *quick, name="a-mix")[0]
        kinds = {row["type"] for row in both["decode"]["kernels"]}
        self.assertIn("iq4_nl", kinds)
        self.assertNotIn("quantize", {row["kernel"] for row in both["decode"]["kernels"]})
        wrong = start("-m", model("a-f32"), "--kernels=fast")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("auto", wrong.stderr)
        self.assertEqual(start("-m", model("a-f32"), "--kernels", "--ab", "io=uring,pread")
                         .returncode, 2)

    def test_table_for_people(self):
        run = start("-m", model("a-f32"), "--threads", 2, "--kernels", "-p", 8, "-n", 4,
                    "--reps", 1)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"decode of 4 tokens: [0-9.]+ ms a token")
        self.assertRegex(run.stdout, r"experts +product +f32 +[0-9.]+")


class DeviceKernels(unittest.TestCase):
    """bench --kernels on a GPU: the device's own times and one row of the host make the total."""

    def setUp(self):
        """Compiled kernels and measured shapes go elsewhere than the user's."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = os.path.join(folder.name, "regolith")
        # Drivers keep memory to the end; our own allocations are counted (rg_alloc_live_bytes).
        there = unittest.mock.patch.dict(
            os.environ, XDG_CACHE_HOME=folder.name,
            ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
        there.start()
        self.addCleanup(there.stop)

    def gpu(self, name, *args):
        run = start("-m", model(name), "--threads", 2, "--backend", "vulkan", "--gpu-check", *args)
        if run.returncode and "no Vulkan device" in run.stderr:
            self.skipTest("no GPU")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("validation", run.stderr)
        return run.stdout

    def table(self, *args, name="a-mix"):
        return json.loads(self.gpu(name, "--json", "--kernels", "-p", 24, "-n", 6, "--reps", 1,
                                   *args))

    def check_sums(self, table, phase):
        rows = phase["kernels"]
        host = [row for row in rows if row["part"] == "host"]
        device = [row for row in rows if row["part"] != "host"]
        self.assertEqual(len(host), 1)
        self.assertEqual({row["part"][:6] for row in device}, {"device"})
        on_device = sum(row["ms"] for row in device)
        self.assertGreater(on_device, 0)
        self.assertGreater(host[0]["ms"], 0)
        self.assertAlmostEqual(on_device + host[0]["ms"],
                               phase["accounted_share"] * phase["wall_ms"], delta=1e-4)
        self.assertLessEqual(phase["accounted_share"], 1.0001)
        self.assertGreater(phase["accounted_share"], 0.8)  # the rest is outside the windows
        self.assertNotEqual(table["gpu"], "")
        self.assertGreater(table["read_gb_s"], 0)
        return device

    def test_resident(self):
        table = self.table()
        for name in ("prefill", "decode"):
            self.check_sums(table, table[name])
        rows = self.check_sums(table, table["decode"])
        products = [row for row in rows if row["kernel"] == "mul_rows"]
        # Every format of the file, each with its bytes; as many calls in every token.
        self.assertLessEqual({"q8_0", "iq4_nl"}, {row["type"] for row in products})
        for row in products:
            self.assertGreater(row["gb_s"], 0, row)
            self.assertGreater(row["gmac_s"], 0, row)
            self.assertEqual(row["calls"] % table["decode"]["tokens"], 0, row)
        self.assertEqual(sum(row["calls"] for row in rows if row["kernel"] == "embed"), 6)
        self.assertEqual({row["part"] for row in rows}, {"device"})

    def test_streamed(self):
        """The table for people, with the experts' products whose list is made on the way."""
        said = self.gpu("a-f32", "--kernels", "-p", 8, "-n", 3, "--reps", 1, *STREAMED)
        decode = said[said.index("decode of 3 tokens"):]
        self.assertRegex(decode, r"device +mul_rows +f32 +[0-9.]+")
        self.assertRegex(decode, r"device, listed experts mul_rows +f32 +[0-9.]+")
        self.assertRegex(decode, r"host +device has no work +- +[0-9.]+")

    def test_copies(self):
        """Copies into a staged arena have a row beside the sum; other arenas have none."""
        staged = self.table("--gpu-arena", "staged", *STREAMED, name="a-f32")
        for name in ("prefill", "decode"):
            self.check_sums(staged, staged[name])
            (row,) = staged[name]["beside"]
            self.assertEqual((row["part"], row["kernel"]), ("copies beside", "staging to slot"))
            self.assertGreater(row["calls"], 0)
            self.assertEqual(row["bytes"] % row["calls"], 0)  # experts of one size
            self.assertGreater(row["ms"], 0)
            self.assertAlmostEqual(row["gb_s"], row["bytes"] / row["ms"] * 1e-6, delta=1e-6)
        mapped = self.table("--gpu-arena", "mapped", *STREAMED)
        self.assertEqual([mapped[x]["beside"] for x in ("prefill", "decode")], [[], []])
        said = self.gpu("a-mix", "--kernels", "-p", 8, "-n", 3, "--reps", 1, "--gpu-arena",
                        "staged", *STREAMED)
        decode = said[said.index("decode of 3 tokens"):]
        self.assertRegex(decode,
                         r"outside the windows .*\ncopies beside +staging to slot +- +[0-9.]+")

    def test_drafts(self):
        """The table of drafts counts on a device what it counts on the CPU."""
        args = ("-p", 12, "-n", 8, "--reps", 1, "--draft", "auto", "--draft-max", 2)
        host, _ = bench(*args, name="k-mtp")
        device = json.loads(self.gpu("k-mtp", "--json", *args))
        self.assertEqual(device.keys(), host.keys())
        for here, there in zip(device["arms"], host["arms"], strict=True):
            name = (here["arm"], here["drafts"])
            self.assertEqual(name, (there["arm"], there["drafts"]))
            self.assertEqual(here.keys(), there.keys(), name)
            self.assertEqual(here["draft"].keys(), there["draft"].keys(), name)
            counts = [[(w["source"], w["drafts"], w["windows"], w["tokens"])
                       for w in arm["draft"]["windows"]] for arm in (here, there)]
            if name[0] in ("off", "plain", "forced"):  # the texts may differ, these do not
                self.assertEqual(counts[0], counts[1], name)
                self.assertEqual(here["draft"]["accepted"], there["draft"]["accepted"], name)
            if name[0] in ("mtp", "forced"):
                self.assertGreater(here["draft"]["offered"], 0, name)
            if name[0] == "off":
                continue
            self.assertEqual(sum(c[3] for c in counts[0]), 7, name)  # the prompt gave the first
            self.assertEqual(sum(c[2] for c in counts[0]) + here["draft"]["accepted"], 7, name)
            self.assertEqual(sum(c[1] * c[2] for c in counts[0]), here["draft"]["offered"], name)

    def test_sweep(self):
        """The best shapes are kept beside the compiled kernels, one line for each product."""
        self.check_sweep("slots", 2)

    def test_sweep_of_tiles(self):
        """Experts of a prompt: gate, up and down have one shape."""
        self.check_sweep("experts", 1)

    def check_sweep(self, op, least):
        said = self.gpu("a-f32", "--sweep", op).splitlines()
        rows = [line.split() for line in said if line.startswith(op + " ")]
        self.assertGreaterEqual(len(rows), least)
        for row in rows:
            self.assertEqual(row[1], "f32")
            self.assertLessEqual(float(row[7]), float(row[6]))  # best, usual
        kept = said[-1].split()[-1]
        self.assertIn(f"{len(rows)} products", said[-1])
        self.assertEqual(os.path.dirname(kept), self.cache)
        with open(kept, encoding="ascii") as f:
            lines = f.read().splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         ["regolith-gpu-tiles", *[op] * len(rows), "hash"])
        os.remove(kept)

    def test_sweep_refusals(self):
        for args in (("--sweep", "slots"), ("--sweep", "all", "--backend", "vulkan", "--kernels"),
                     ("--sweep", "columns", "--backend", "vulkan")):
            run = start("-m", model("a-f32"), *args)
            self.assertEqual(run.returncode, 2, args)
            self.assertEqual(run.stdout, "", args)


class Bench(unittest.TestCase):
    def check_runs(self, part, reps, skipped=()):
        for key in KEYS:
            if key in skipped:
                self.assertNotIn(key, part)
                continue
            runs = part["runs"][key]
            self.assertEqual(len(runs["values"]), reps, key)
            self.assertEqual(runs["min"], min(runs["values"]), key)
            self.assertEqual(runs["max"], max(runs["values"]), key)
            self.assertAlmostEqual(runs["median"], median(runs["values"]), msg=key)
            self.assertEqual(part[key], runs["median"], key)

    def check_sums(self, part, reps):
        """The parts of the time add up to the wall time in every run."""
        for i in range(reps):
            value = {key: part["runs"][key]["values"][i] for key in part["runs"]}
            parts = sum(value[k] for k in ("compute_ms", "wait_ms", "handshake_ms", "host_ms"))
            self.assertAlmostEqual(parts / value["wall_ms"], value["accounted_share"], 6)
            # 0.98 in a run of seconds; this one takes milliseconds, and the machine may be busy.
            self.assertGreater(value["accounted_share"], 0.5)
            self.assertLess(value["accounted_share"], 1.02)
            for key in ("compute_ms", "wait_ms", "host_ms"):
                self.assertGreaterEqual(value[key], 0, key)

    def check_layers(self, layers, decode):
        for key in LAYER_KEYS:
            self.assertEqual(len(layers[key]), N_LAYER, key)
            self.assertTrue(all(x >= 0 for x in layers[key]), key)
        inside = sum(sum(layers[k]) for k in LAYER_KEYS[:4])
        wall_ns = decode["runs"]["wall_ms"]["values"][layers["run"]] * 1e6
        self.assertAlmostEqual(inside + layers["outside_ns"], wall_ns, delta=2)
        self.assertGreaterEqual(layers["outside_ns"], 0)
        self.assertGreater(layers["bound_ms"], 0)

    def test_resident(self):
        figures, _ = bench("-p", 24, "-n", 6, "--reps", 3)
        for part in (figures, figures["warm"]):
            self.check_runs(part, 3)
            self.check_runs(part["prefill"], 3, skipped=("decode_tok_s",))
            self.check_runs(part["decode"], 3, skipped=("prefill_tok_s", "ttft_ms"))
            self.check_sums(part, 3)
            self.check_layers(part["layers"], part["decode"])
            self.assertEqual(part["read_bytes"], 0)
            self.assertEqual(sum(part["layers"]["wait_ns"]), 0)
            self.assertLessEqual(part["layers"]["bound_ms"], part["layers"]["token_ms"] + 1e-6)
        self.assertGreater(figures["prefill_tok_s"], 0)
        self.assertGreater(figures["decode_tok_s"], 0)
        self.assertEqual((figures["n_prompt"], figures["n_gen"], figures["reps"]), (24, 6, 3))
        self.assertEqual(figures["layers"]["tokens"], 6)
        self.assertIn("others_cores", figures["machine"])

    def test_streamed(self):
        figures, _ = bench("-p", 24, "-n", 6, "--reps", 2, "--chunk", 16, *STREAMED)
        self.assertNotEqual(figures["io_backend"], "")
        self.assertEqual(figures["drive_ceiling_gb_s"], 1.5)
        for part in (figures, figures["warm"]):
            self.check_runs(part, 2)
            self.check_sums(part, 2)
            self.check_layers(part["layers"], part["decode"])
            self.assertGreater(part["read_bytes"], 0)
            self.assertGreaterEqual(part["decode"]["runs"]["read_bytes"]["min"], 0)
            self.assertLessEqual(part["arena_peak_bytes"], figures["arena_bytes"])
            # Every token of the decode phase wants N_USED experts in every layer.
            for i in range(2):
                runs = part["decode"]["runs"]
                wanted = runs["hits"]["values"][i] + runs["misses"]["values"][i]
                self.assertEqual(wanted, 6 * N_LAYER * N_USED)
        # A cold run starts with nothing: all experts the prompt uses are read at least once.
        self.assertEqual(figures["runs"]["hits"]["min"], figures["runs"]["hits"]["max"])
        self.assertEqual(figures["runs"]["misses"]["min"], figures["runs"]["misses"]["max"])

    def test_urgent_bytes(self):
        """With nothing read ahead, what a layer waits for is what it missed."""
        figures, _ = bench("-p", 8, "-n", 12, "--reps", 1, "--lookahead", "off", *STREAMED)
        layers, decode = figures["layers"], figures["decode"]
        misses = decode["misses"]
        self.assertGreater(misses, 0)
        self.assertEqual(decode["late"], 0)
        self.assertEqual(sum(layers["late_bytes"]), 0)
        total = sum(layers["urgent_bytes"])
        self.assertEqual(total % misses, 0)  # all experts of this model have one size
        self.assertEqual(total // misses, 3 * 64 * 32 * 4)  # gate, up, down: [64][32] f32

    def test_null_reads(self):
        figures, _ = bench("-p", 16, "-n", 4, "--reps", 1, "--io", "null", *STREAMED)
        self.assertLess(figures["decode"]["wait_ms"], 1)  # a join of n-gram rows at most
        self.assertEqual(sum(figures["layers"]["urgent_bytes"]), 0)

    def test_cold_and_generate(self):
        figures, _ = bench("-p", 8, "-n", 5, "--reps", 2, "--cold", "--generate", *STREAMED)
        self.check_runs(figures, 2)
        self.check_sums(figures, 2)
        self.assertGreater(figures["sample_ms"], 0)

    def test_prompt_alone(self):
        figures, _ = bench("-p", 8, "-n", 0, "--reps", 1)
        self.assertEqual(figures["decode_tok_s"], 0)
        self.assertGreater(figures["prefill_tok_s"], 0)

    def test_interleaved(self):
        figures, said = bench("-p", 8, "-n", 2, "--reps", 2, "--ab", "lookahead=off,4", "-v",
                              *STREAMED)
        names = ["lookahead=off", "lookahead=4"]
        self.assertEqual(figures["order"], names * 2)
        self.assertEqual([a["arm"] for a in figures["arms"]], names)
        log = [line.split()[4] for line in said.splitlines() if line.startswith("bench: rep")]
        self.assertEqual(log, ["A", "B"] * 2)
        for arm in figures["arms"]:
            self.check_runs(arm, 2)
            self.check_sums(arm, 2)
        off, ahead = figures["arms"]
        self.assertEqual(off["decode"]["readahead_useful"] + off["decode"]["readahead_wasted"], 0)
        self.assertEqual(len(figures["ratios"]), 1)
        ratio = figures["ratios"][0]
        self.assertEqual([ratio["a"], ratio["b"]], names)
        for key in ("prefill_tok_s", "decode_tok_s", "ttft_ms"):
            a, b = (arm["runs"][key]["values"] for arm in (off, ahead))
            for i, value in enumerate(ratio[key]["values"]):
                self.assertAlmostEqual(value, b[i] / a[i])

    def test_two_by_two(self):
        figures, _ = bench("-p", 8, "-n", 2, "--reps", 2, "--ab", "split=on,off", "--ab",
                           "threads=1,2", *STREAMED)
        names = [f"split={s} threads={t}" for s in ("on", "off") for t in (1, 2)]
        self.assertEqual(figures["order"], names * 2)
        self.assertEqual([a["threads"] for a in figures["arms"]], [1, 2, 1, 2])
        self.assertEqual(len(figures["ratios"]), 6)

    def test_models_as_arms(self):
        figures, _ = bench("-p", 8, "-n", 2, "--reps", 1, "--ab",
                           f"model={model('a-f32')},{model('a-mix')}")
        self.assertEqual([a["model"] for a in figures["arms"]], [model("a-f32"), model("a-mix")])

    def test_text_and_table(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("one two three four five six seven eight nine ten " * 3)
            f.flush()
            run = start("-m", model("a-f32"), "-p", 12, "-n", 3, "--reps", 2, "-f", f.name)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("prefill tok/s", run.stdout)
            self.assertIn("A cold", run.stdout)
            self.assertIn("A warm", run.stdout)
            run = start("-m", model("a-f32"), "-p", 5000, "-n", 3, "-f", f.name)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^regolith: .* holds \d+ tokens, 5003 are needed\n$")

    def test_refusals(self):
        for args in (("--ab", "lookahead"), ("--ab", "nothing=1,2"), ("--ab", "reps=1,2"),
                     ("--ab", "threads=1,"), ("--ab", "threads=1,x"), ("-p", "0"),
                     ("--reps", "0"), ("--ctx", "10"), ("--ab", "threads=" + "1," * 16 + "1")):
            run = start("-m", model("a-f32"), *args)
            self.assertEqual(run.returncode, 2, args)
            self.assertEqual(run.stdout, "", args)
            self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()
