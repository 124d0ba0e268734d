#!/usr/bin/python3
"""Every way into a known prompt: serve_prefix_test.py BINARY. A prompt of ids is left at each point
of the snapshots' grid, next to it, and at odd tokens, and goes on otherwise: log probabilities are
those of a server that knew nothing, from memory, from disk and after a restart. And what an agent
does after a restart evaluates only what is new."""
import json
import os
import random
import sys
import tempfile
import time
import unittest

from serve_test import Server, long_text

GRID = 1024
N = 2 * GRID + 333
CUTS = [1, 7, 511, GRID - 1, GRID, GRID + 1, 1501, 2 * GRID - 1, 2 * GRID, 2 * GRID + 1, N - 1, N]
FLAGS = ("--ctx", "4096", "--chunk", "512")


def prompt_ids():
    r = random.Random(3)
    return [100 + r.randrange(150) for _ in range(N)]


def ask(server, ids):
    r = server.json("/v1/completions", {"prompt": ids, "max_tokens": 3, "logprobs": 4})
    cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
    return json.dumps(r["choices"]), cached


def talk(server, messages):
    return server.json("/v1/chat/completions", {"messages": messages, "max_tokens": 12,
                                                "logprobs": True, "top_logprobs": 4})


def wait_until_saved(server):
    """The engine saves as soon as it is idle; then nothing is written any more."""
    before, calm = None, 0
    deadline = time.time() + 30
    while calm < 4 and time.time() < deadline:
        time.sleep(0.1)
        now = [line for line in server.ask("/metrics")[2].decode().split("\n")
               if "disk_writes_total" in line]
        calm = calm + 1 if now == before else 0
        before = now


def files(folder):
    """Entries and when each was written."""
    return {e.name: e.stat().st_mtime_ns for e in os.scandir(folder) if e.name.endswith(".rgs")}


def kind(path):
    with open(path, "rb") as f:
        return f.read(8)


def variants():
    """Each cut with a tail of its own; the whole prompt as it is."""
    ids = prompt_ids()
    tail = [[300 + i, 301, 302] if cut < N else [] for i, cut in enumerate(CUTS)]
    return [(cut, ids[:cut] + more) for cut, more in zip(CUTS, tail)]


class Prefixes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cold = Server(*FLAGS, "--snapshots", "1")
        cls.wanted = [ask(cold, ids)[0] for _, ids in variants()]
        cls.first = ask(cold, prompt_ids())[0]
        assert cold.stop() == 0

    def test_from_memory(self):
        for drafts in ((), ("--draft", "auto", "--draft-fixed")):
            s = Server(*FLAGS, "--snapshots", "256M", *drafts)
            try:
                for (cut, ids), wanted in zip(variants(), self.wanted):
                    self.assertEqual(ask(s, prompt_ids())[0], self.first)
                    got, cached = ask(s, ids)
                    self.assertEqual(got, wanted, cut)
                    # From the grid point below; from its own end where it was whole.
                    self.assertGreaterEqual(cached, cut // GRID * GRID)
                    self.assertLessEqual(cached, cut)
                    if cut == N:
                        self.assertEqual(cached, N)
            finally:
                self.assertEqual(s.stop(), 0)

    def test_from_disk_and_after_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = FLAGS + ("--snapshots", "64M", "--cache-dir", os.path.join(folder, "cache"))
            s = Server(*flags)
            try:
                self.assertEqual(ask(s, prompt_ids())[0], self.first)
                for restart in (False, True):
                    for (cut, ids), wanted in zip(variants(), self.wanted):
                        got, cached = ask(s, ids)
                        self.assertEqual(got, wanted, cut)
                        self.assertLessEqual(cached, len(ids))
                        # What was whole is found again, on disk too.
                        known = ask(s, ids + [400, 401])[1]
                        if restart and cut > 32:
                            self.assertEqual(known, len(ids) + 2)
                    if not restart:
                        time.sleep(0.2)
                        s.kill()
                        s = Server(*flags)
            finally:
                self.assertEqual(s.stop(), 0)

    def test_an_agent_goes_on_after_a_restart(self):
        """Another last message, the same again, the next turn, another conversation under the same
        instructions and a going back far behind evaluate only what is new."""
        system = {"role": "system", "content": long_text(350)}
        first = [system, {"role": "user", "content": long_text(700)}]
        with tempfile.TemporaryDirectory() as folder:
            flags = FLAGS + ("--snapshots", "256M", "--cache-dir", os.path.join(folder, "cache"))
            s, cold = Server(*flags), Server(*FLAGS, "--snapshots", "1")
            self.addCleanup(cold.stop)
            self.addCleanup(lambda: s.stop())
            a = talk(s, first)
            second = first + [a["choices"][0]["message"],
                              {"role": "user", "content": long_text(99)}]
            b = talk(s, second)
            third = second + [b["choices"][0]["message"], {"role": "user", "content": "And now?"}]
            edited = second[:-1] + [{"role": "user", "content": "Something else."}]
            other = [system, {"role": "user", "content": "Who art thou?"}]
            back = [system, {"role": "user", "content": long_text(690) + " of old"}]
            n = [r["usage"]["prompt_tokens"] for r in (a, b)]
            shared = len(s.json("/tokenize", {"content": system["content"]})["tokens"])
            known = (n[0] + 4, n[1], n[1] + 4, shared, n[0] // GRID * GRID)
            self.assertGreater(n[0], GRID)
            wait_until_saved(s)
            try:
                for messages, least in zip((edited, second, third, other, back), known):
                    s.kill()
                    s = Server(*flags)
                    got, wanted = (talk(x, messages) for x in (s, cold))
                    self.assertEqual(got["choices"][0]["logprobs"],
                                     wanted["choices"][0]["logprobs"])
                    cached = got["usage"]["prompt_tokens_details"]["cached_tokens"]
                    self.assertGreaterEqual(cached, least)
                    wait_until_saved(s)
            finally:
                self.assertEqual(s.stop(), 0)

    def test_rows_are_written_once(self):
        """A second turn adds its states and its own rows, not the first one's again."""
        with tempfile.TemporaryDirectory() as folder:
            cache = os.path.join(folder, "cache")
            s = Server(*FLAGS, "--snapshots", "256M", "--cache-dir", cache)
            try:
                ids = prompt_ids()
                ask(s, ids)
                wait_until_saved(s)
                before = files(cache)
                ask(s, ids + prompt_ids()[:GRID])
                wait_until_saved(s)
                after = files(cache)
                kept = [name for name in before if after.get(name) == before[name]]
                self.assertGreaterEqual(len(kept), 2)  # rows of both whole grid steps
                rows = [n for n in after if kind(os.path.join(cache, n)) == b"RGROWS_1"]
                self.assertEqual(len(rows), (N + GRID) // GRID)
            finally:
                self.assertEqual(s.stop(), 0)

    def test_rows_that_are_gone(self):
        """Without rows a state is worth nothing; the reply is that of a cold start."""
        for damage in (os.unlink, lambda path: os.truncate(path, os.path.getsize(path) // 2)):
            with tempfile.TemporaryDirectory() as folder:
                cache = os.path.join(folder, "cache")
                flags = FLAGS + ("--snapshots", "256M", "--cache-dir", cache)
                s = Server(*flags)
                self.assertEqual(ask(s, prompt_ids())[0], self.first)
                wait_until_saved(s)
                s.kill()
                for name in files(cache):
                    if kind(os.path.join(cache, name)) == b"RGROWS_1":
                        damage(os.path.join(cache, name))
                s = Server(*flags)
                try:
                    got, cached = ask(s, prompt_ids())
                    self.assertEqual(got, self.first)
                    self.assertEqual(cached, 0)
                finally:
                    self.assertEqual(s.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
