#!/usr/bin/python3
"""Drafts and cache-aware routing behind HTTP: serve_draft_test.py BINARY. What a server with drafts
says is what one without says: text, log probabilities, forms, many at once, from kept prefixes and
after a restart. Routing by request changes text, repeatably, and leaves no trace behind."""
import concurrent.futures
import json
import os
import sys
import tempfile
import time
import unittest

from serve_test import WEATHER, WORDS, Server, answer, long_text

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["word", "tags", "n"],
          "properties": {"word": {"type": "string", "maxLength": 12},
                         "tags": {"type": "array", "items": {"enum": ["a", "b\n\"c"]},
                                  "minItems": 2, "maxItems": 3},
                         "n": {"type": "integer"}, "deep": {"type": "object", "properties": {
                             "x": {"type": "boolean"}}, "required": ["x"]}}}


def asks():
    """Bodies of every kind, with all that a token's choice depends on."""
    user = [{"role": "user", "content": "Define reparation."}]
    probs = {"logprobs": True, "top_logprobs": 3}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    return [
        {"messages": user, "max_tokens": 40, **probs},
        {"messages": [{"role": "user", "content": "Say it again: " + long_text(60)}],
         "max_tokens": 60, **probs},
        {"messages": user, "max_tokens": 40, "temperature": 1, "seed": 3, "top_p": 1, "min_p": 0,
         "frequency_penalty": 0.4, "logit_bias": {"70": 3}, **probs},
        {"messages": user, "max_tokens": 200, "response_format": form, **probs},
        {"messages": user, "max_tokens": 200, "response_format": form, "temperature": 1, "seed": 8},
        {"messages": user, "max_tokens": 60, "response_format": {"type": "json_object"}, **probs},
        {"messages": [{"role": "user", "content": "I am going to Ankara. What weather?"}],
         "tools": [WEATHER], "tool_choice": "required", "max_tokens": 90},
        {"messages": user, "max_tokens": 40, "stop": [" made"], **probs},
        {"messages": user, "max_tokens": 1, **probs}, {"messages": user, "max_tokens": 2, **probs},
        {"messages": user, "max_tokens": 40, "reasoning_effort": "medium"}]


def said(reply):
    """All of a reply that is not made up: calls have random names."""
    choice = reply["choices"][0]
    for call in choice["message"].get("tool_calls") or []:
        call["id"] = ""
    return json.dumps([choice, reply["usage"]["completion_tokens"]])


def meters(server):
    lines = server.ask("/metrics")[2].decode().split("\n")
    return {k: float(v) for k, v in (x.split() for x in lines if x.startswith("regolith_"))}


def settled(server, name, least):
    deadline = time.time() + 20
    while meters(server)[name] < least and time.time() < deadline:
        time.sleep(0.05)
    return meters(server)[name]


class Drafts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plain = Server("--parallel", "4", "--snapshots", "1")
        cls.bodies = asks()
        cls.wanted = [said(plain.json("/v1/chat/completions", b)) for b in cls.bodies]
        assert plain.stop() == 0

    def check(self, *flags):
        s = Server("--parallel", "4", *flags)
        try:
            props = s.json("/props")
            self.assertEqual(props["draft"], flags[1])
            ask = lambda b: said(s.json("/v1/chat/completions", b))  # noqa
            for body, wanted in zip(self.bodies, self.wanted):
                self.assertEqual(ask(body), wanted)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                got = list(pool.map(ask, self.bodies * 2))
            self.assertEqual(got, self.wanted * 2)
            self.assertGreater(settled(s, "regolith_draft_offered_total", 30), 30)
            m = meters(s)
            self.assertGreater(m["regolith_draft_accepted_total"], 0)
            # Fewer windows than tokens, though four wait for each other at times.
            self.assertLess(m["regolith_draft_accepted_total"], m["regolith_draft_offered_total"])
        finally:
            self.assertEqual(s.stop(), 0)

    def test_guesses_of_the_draft_block(self):
        self.check("--draft", "mtp", "--draft-fixed", "--draft-max", "3")

    def test_guesses_of_the_text(self):
        self.check("--draft", "suffix", "--draft-fixed", "--draft-max", "7")

    def test_guesses_as_they_pay_with_experts_that_stream(self):
        self.check("--draft", "auto", "--arena-experts", "80", "--chunk", "64")

    def test_prefixes_with_guesses_are_cold_ones(self):
        flags = ("--draft", "auto", "--draft-fixed", "--draft-max", "4", "--snapshots", "64M")
        with tempfile.TemporaryDirectory() as folder:
            disk = flags + ("--cache-dir", os.path.join(folder, "cache"))
            s, cold = Server(*disk), Server("--snapshots", "1")
            try:
                talk = [{"role": "user", "content": long_text(150)}]
                for turn in range(6):
                    ask = {"messages": talk, "max_tokens": 12, "logprobs": True, "top_logprobs": 5}
                    a, b = (x.json("/v1/chat/completions", ask) for x in (s, cold))
                    self.assertEqual(said(a), said(b))
                    cached = a["usage"]["prompt_tokens_details"]["cached_tokens"]
                    if turn:
                        self.assertLess(a["usage"]["prompt_tokens"] - cached, 40)
                    talk += [{"role": "assistant", "content": answer(a)},
                             {"role": "user", "content": f"Define {WORDS[turn]}."}]
                    if turn == 2:
                        settled(s, "regolith_disk_writes_total", 2)
                        s.kill()
                        s = Server(*disk)
            finally:
                self.assertEqual(s.stop(), 0)
                cold.stop()

    def test_routing_by_request(self):
        flags = ("--arena-experts", "80", "--chunk", "64", "--snapshots", "64M", "--parallel", "2")
        plain = Server(*flags)
        user = [{"role": "user", "content": "Define kindness."}]
        ask = {"messages": user, "max_tokens": 48, "logprobs": True, "top_logprobs": 3}
        bodies = [{**ask, "moce": 1}, {**ask, "moce": 0}, {**ask, "moce": 0.5}]
        try:
            first = [plain.json("/v1/chat/completions", b) for b in bodies]
            receipt = first[0]["usage"]["moce"]
            self.assertEqual(receipt["strength"], 1)
            self.assertGreater(receipt["routes_changed"], 0)
            self.assertTrue(0 < receipt["mass_moved"] < 1)
            self.assertNotIn("moce", first[1]["usage"])
            self.assertNotEqual(said(first[0]), said(first[1]))
            # Whatever came before, and whoever runs beside it.
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for _ in range(2):
                    got = list(pool.map(lambda b: plain.json("/v1/chat/completions", b), bodies))
                    for g, f in zip(got, first):
                        self.assertEqual(said(g), said(f))
                        self.assertEqual(g["usage"].get("moce"), f["usage"].get("moce"))
            # A plain turn behind a routed reply is a cold one.
            more = {**ask, "messages": user + [{"role": "assistant", "content": answer(first[0])},
                                               {"role": "user", "content": "Define abscond."}]}
            warm = plain.json("/v1/chat/completions", more)
            status, _, text = plain.ask("/v1/chat/completions", {**ask, "moce": 1.5})
            self.assertEqual(status, 400, text)
        finally:
            self.assertEqual(plain.stop(), 0)
        routed = Server(*flags, "--moce", "1", "--draft", "auto", "--draft-fixed")
        try:
            got = routed.json("/v1/chat/completions", ask)
            self.assertEqual(said(got), said(first[0]))
            self.assertEqual(got["usage"]["moce"], receipt)
            m = routed.json("/v1/messages", {"messages": user, "max_tokens": 48})
            self.assertEqual(m["usage"]["moce"], receipt)
            self.assertEqual(said(routed.json("/v1/chat/completions", {**more, "moce": 0})),
                             said(warm))
        finally:
            self.assertEqual(routed.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
