#!/usr/bin/python3
"""The server on a GPU: serve_gpu_test.py BINARY. A request whose picks look at the best logits
alone gets no row of them whole, beside requests that need all, and says what it says with all.
Skipped (77) without a device."""
import concurrent.futures
import sys
import time
import unittest

from serve_test import Server, answer

USER = [{"role": "user", "content": "Define reparation."}]
WORD = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["one", "two"]}}}
# Each can be answered from the best logits alone.
FEW = [{"temperature": 0},
       {"temperature": 1.2, "top_k": 64, "top_p": 1, "min_p": 0, "seed": 3},
       {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "seed": 4}]
# None of these.
ALL = [{"temperature": 1, "top_k": 0, "top_p": 0.9, "seed": 5},
       {"temperature": 1, "top_k": 65, "seed": 6},
       {"temperature": 0, "frequency_penalty": 0.3},
       {"temperature": 0, "logit_bias": {"70": 1}},
       {"temperature": 0, "response_format": WORD}]


def body(how, n=8, **more):
    return {"messages": USER, "max_tokens": n, **how, **more}


def said(reply):
    return [answer(reply), reply["usage"]["completion_tokens"]]


class Counts:
    """Tokens, rows that came whole and lists of the best since the last look."""

    def __init__(self, server):
        self.server = server
        self.last = self.read()

    def read(self):
        names = ("generated_tokens", "logit_rows_whole", "logit_rows_best")
        lines = self.server.ask("/metrics")[2].decode().split("\n")
        all_of = dict(x.split() for x in lines if x.startswith("regolith_"))
        return [int(float(all_of[f"regolith_{n}_total"])) for n in names]

    def look(self, tokens):
        """The server shows its counts ten times a second."""
        deadline = time.time() + 20
        now = self.read()
        while now[0] - self.last[0] < tokens and time.time() < deadline:
            time.sleep(0.05)
            now = self.read()
        delta = [a - b for a, b in zip(now, self.last)]
        self.last = now
        return delta


class Gpu(unittest.TestCase):
    def start(self, *flags):
        s = Server("--backend", "vulkan", *flags)
        self.addCleanup(s.stop)
        return s, Counts(s)

    def test_rows(self):
        """Alone: one row or list a token, and never the other kind."""
        s, counts = self.start("--parallel", "1", "--draft", "off")
        for how in FEW:
            wanted = said(s.json("/v1/chat/completions", body(how, logprobs=True)))
            self.assertEqual(counts.look(wanted[1]), [wanted[1], wanted[1], 0])
            self.assertEqual(said(s.json("/v1/chat/completions", body(how))), wanted)
            self.assertEqual(counts.look(wanted[1]), [wanted[1], 0, wanted[1]])
        for how in ALL:
            n = said(s.json("/v1/chat/completions", body(how, 3)))[1]
            self.assertEqual(counts.look(n), [n, n, 0])

    def test_standing(self):
        """A session that stands behind the whole prompt serves whom its logits are enough for."""
        s, counts = self.start("--parallel", "1", "--draft", "off")
        ask = lambda **more: s.json("/v1/completions", {  # noqa
            "prompt": "The word", "max_tokens": 1, "temperature": 0, **more})
        wanted = ask(logprobs=3)["choices"]
        self.assertEqual(counts.look(1), [1, 1, 0])
        for more, cost in (({}, [1, 0, 0]), ({"prompt": "Another"}, [1, 0, 1]), ({}, [1, 0, 1]),
                           ({}, [1, 0, 0]), ({"logprobs": 3}, [1, 1, 0])):
            got = ask(**more)["choices"]
            self.assertEqual(counts.look(1), cost)
            if "prompt" not in more:
                self.assertEqual(got[0]["text"], wanted[0]["text"])
        self.assertEqual(got, wanted)

    def test_shared(self):
        """Many at once, of both kinds: each row as its own request needs it."""
        bodies = [body(how) for how in FEW] + [body(how, 4) for how in ALL]
        bodies += [body(how, logprobs=True) for how in FEW]
        alone, counts = self.start("--parallel", "1", "--draft", "off")
        wanted = [said(alone.json("/v1/chat/completions", b)) for b in bodies]
        alone.stop()
        s, counts = self.start("--parallel", "11", "--draft", "off")
        for few in (bodies[:3] * 3, bodies[:3]):
            asked = few + bodies[3:] if len(few) == 3 else few
            with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
                got = list(pool.map(lambda b: said(s.json("/v1/chat/completions", b)), asked))
            self.assertEqual(got, [wanted[bodies.index(b)] for b in asked])
            best = sum(g[1] for g in got[:len(few)])
            whole = sum(g[1] for g in got[len(few):])
            self.assertEqual(counts.look(best + whole), [best + whole, whole, best])

    def test_drafts(self):
        """Guesses of one kind beside those of the other."""
        plain, _ = self.start("--parallel", "1", "--draft", "off")
        text = [{"role": "user", "content": "Say it again: " + "reparation abscond " * 6}]
        bodies = [{"messages": text, "max_tokens": 14, **how} for how in FEW]
        bodies.append({**bodies[0], "logprobs": True})
        wanted = [said(plain.json("/v1/chat/completions", b)) for b in bodies]
        plain.stop()
        s, counts = self.start("--parallel", "4", "--draft", "suffix", "--draft-fixed")
        for asked in (bodies[:3], bodies):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                got = list(pool.map(lambda b: said(s.json("/v1/chat/completions", b)), asked))
            self.assertEqual(got, wanted[:len(asked)])
            tokens, whole, best = counts.look(sum(g[1] for g in got))
            self.assertGreaterEqual(best, sum(g[1] for g in got[:3]))
            self.assertEqual(whole > 0, len(asked) == 4)
            self.assertGreaterEqual(tokens, 14)


def has_device():
    try:
        return Server("--backend", "vulkan", "--parallel", "1").stop() == 0
    except RuntimeError as e:
        if "no Vulkan device" not in str(e) and "no usable" not in str(e):
            raise
        return False


if __name__ == "__main__":
    if not has_device():
        print("skipped: no usable GPU")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
