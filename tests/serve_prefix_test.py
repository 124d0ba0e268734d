#!/usr/bin/python3
"""Every way into a known prompt: serve_prefix_test.py BINARY. A prompt of ids is left at each point
of the snapshots' grid, next to it, and at odd tokens, and goes on otherwise: log probabilities are
those of a server that knew nothing, from memory, from disk and after a restart."""
import json
import os
import random
import sys
import tempfile
import time
import unittest

from serve_test import Server

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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
