#!/usr/bin/python3
"""The server from outside: serve_test.py BINARY. Drives `regolith serve` on the demo model."""
import concurrent.futures
import datetime
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = sys.argv[1]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "regolith-demo-q4.gguf")
WORDS = ["reparation", "abscond", "kindness", "egotist", "happiness", "learning"]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Report the weather in a town.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [BINARY, "serve", "-m", MODEL, "--port", "0", "--no-think", "--temp", "0",
             "--threads", "2", *flags], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r"http://[^/]*:(\d+)/", line)
        if not found:
            raise RuntimeError(line + self.process.stderr.read())
        self.port = int(found.group(1))

    def ask(self, path, body=None, headers=None, method=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        c.request(method or ("POST" if data is not None else "GET"), path, data, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, dict(r.getheaders()), text

    def json(self, path, body=None, **kw):
        status, _, text = self.ask(path, body, **kw)
        if status != 200:
            raise AssertionError(f"{status}: {text[:300]!r}")
        return json.loads(text)

    def chat(self, text, **kw):
        return self.json("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": text}], **kw})

    def events(self, path, body):
        _, headers, text = self.ask(path, {**body, "stream": True})
        assert headers["Content-Type"] == "text/event-stream", headers
        data = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(d) for d in data if d != "[DONE]"]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.process.stderr.close()
        return code

    def kill(self):
        """Not even a goodbye."""
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def answer(reply):
    return reply["choices"][0]["message"]["content"]


def long_text(n_words):
    return " ".join(WORDS[i % len(WORDS)] for i in range(n_words))


class Dialects(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("--parallel", "4")

    @classmethod
    def tearDownClass(cls):
        code = cls.s.stop()
        assert code == 0, code

    def test_plain_and_stream_agree(self):
        whole = self.s.chat("Define reparation.")
        self.assertEqual(answer(whole)[:30], "Reparation, n. Satisfaction th")
        self.assertEqual(whole["choices"][0]["finish_reason"], "stop")
        events = self.s.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Define reparation."}],
            "stream_options": {"include_usage": True}})
        text = "".join(e["choices"][0]["delta"].get("content", "")
                       for e in events if e["choices"])
        self.assertEqual(text, answer(whole))
        self.assertEqual(events[-1]["usage"]["completion_tokens"],
                         whole["usage"]["completion_tokens"])

    def test_every_dialect_gives_the_same_text(self):
        text = answer(self.s.chat("Define kindness."))
        m = self.s.json("/v1/messages", {"max_tokens": 200, "messages": [
            {"role": "user", "content": "Define kindness."}]})
        self.assertEqual(m["content"][0]["text"], text)
        self.assertEqual(m["stop_reason"], "end_turn")
        r = self.s.json("/v1/responses", {"input": "Define kindness."})
        self.assertEqual(r["output"][0]["content"][0]["text"], text)
        got = "".join(e["delta"]["text"] for e in self.s.events("/v1/messages", {
            "max_tokens": 200, "messages": [{"role": "user", "content": "Define kindness."}]})
            if e["type"] == "content_block_delta")
        self.assertEqual(got, text)
        got = "".join(e["delta"] for e in self.s.events("/v1/responses", {
            "input": "Define kindness."}) if e["type"] == "response.output_text.delta")
        self.assertEqual(got, text)

    def test_length_stop_and_logprobs(self):
        r = self.s.chat("Define reparation.", max_tokens=5)
        self.assertEqual(r["choices"][0]["finish_reason"], "length")
        self.assertEqual(r["usage"]["completion_tokens"], 5)
        r = self.s.chat("Define reparation.", stop=[" made"])
        self.assertEqual(answer(r), "Reparation, n. Satisfaction that is")
        r = self.s.json("/v1/messages", {"max_tokens": 90, "stop_sequences": ["zz", " made"],
                                         "messages": [{"role": "user",
                                                       "content": "Define reparation."}]})
        self.assertEqual((r["stop_reason"], r["stop_sequence"]), ("stop_sequence", " made"))
        r = self.s.chat("Define reparation.", max_tokens=4, logprobs=True, top_logprobs=3)
        entries = r["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(e["token"] for e in entries), answer(r))
        for e in entries:
            self.assertEqual(len(e["top_logprobs"]), 3)
            self.assertEqual(e["token"], e["top_logprobs"][0]["token"])  # greedy
            self.assertLessEqual(e["logprob"], 0)

    def test_sampling_fields_act(self):
        ask = {"temperature": 1.5, "max_tokens": 24, "min_p": 0, "top_p": 1}
        one = [answer(self.s.chat("Who art thou?", seed=1, **ask)) for _ in range(2)]
        self.assertEqual(one[0], one[1])
        self.assertNotEqual(one[0], answer(self.s.chat("Who art thou?", seed=2, **ask)))
        first = self.s.json("/tokenize", {"content": answer(self.s.chat("Define reparation."))})
        banned = str(first["tokens"][0])
        r = self.s.chat("Define reparation.", max_tokens=3, logit_bias={banned: -100})
        self.assertNotEqual(answer(r)[:1], "R")

    def test_tool_calls_in_both_dialects(self):
        ask = "I am going to Ankara. What weather shall I have?"
        r = self.s.chat(ask, tools=[WEATHER])
        call = r["choices"][0]["message"]["tool_calls"][0]
        self.assertEqual(r["choices"][0]["finish_reason"], "tool_calls")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Ankara"})
        events = self.s.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": ask}], "tools": [WEATHER]})
        pieces = [e["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
                  for e in events if e["choices"][0]["delta"].get("tool_calls")]
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(pieces), call["function"]["arguments"])
        history = [{"role": "user", "content": ask}, r["choices"][0]["message"],
                   {"role": "tool", "tool_call_id": call["id"], "content": "rain, 9 degrees"}]
        final = self.s.json("/v1/chat/completions", {"messages": history, "tools": [WEATHER]})
        self.assertIn("Ankara", answer(final))
        f = WEATHER["function"]
        tools = [{"name": f["name"], "description": f["description"],
                  "input_schema": f["parameters"]}]
        m = self.s.json("/v1/messages", {"max_tokens": 90, "tools": tools, "messages": [
            {"role": "user", "content": ask}]})
        self.assertEqual(m["stop_reason"], "tool_use")
        use = [b for b in m["content"] if b["type"] == "tool_use"][0]
        self.assertEqual(use["input"], {"city": "Ankara"})
        m2 = self.s.json("/v1/messages", {"max_tokens": 90, "tools": tools, "messages": [
            {"role": "user", "content": ask}, {"role": "assistant", "content": m["content"]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"],
                                          "content": "rain, 9 degrees"}]}]})
        self.assertEqual(m2["content"][0]["text"], answer(final))

    def test_tool_choice(self):
        typed = {"type": "function", "function": {"name": "set", "parameters": {
            "type": "object", "required": ["n", "on"], "properties": {
                "n": {"type": "integer"}, "on": {"type": "boolean"},
                "how": {"enum": ["fast", "slow"]}}}}}
        for choice in ("required", {"type": "function", "function": {"name": "set"}}):
            r = self.s.chat("Define reparation.", tools=[WEATHER, typed], tool_choice=choice,
                            max_tokens=120, parallel_tool_calls=False)
            calls = r["choices"][0]["message"]["tool_calls"]
            self.assertEqual(len(calls), 1)
            args = json.loads(calls[0]["function"]["arguments"])
            if choice != "required":
                self.assertEqual(calls[0]["function"]["name"], "set")
                self.assertIsInstance(args["n"], int)
                self.assertIsInstance(args["on"], bool)
                self.assertIn(args.get("how"), (None, "fast", "slow"))
        r = self.s.chat("I am going to Ankara. What weather shall I have?", tools=[WEATHER],
                        tool_choice="none", max_tokens=20)
        self.assertNotIn("tool_calls", r["choices"][0]["message"])

    def test_schema(self):
        schema = {"type": "object", "additionalProperties": False,
                  "required": ["word", "n", "tags", "deep"], "properties": {
                      "word": {"type": "string", "maxLength": 12}, "n": {"type": "integer"},
                      "tags": {"type": "array", "items": {"enum": ["a", "b\n\"c"]},
                               "minItems": 2, "maxItems": 3},
                      "deep": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
                  "$defs": {"d": {"type": "object", "properties": {"x": {"type": "boolean"}},
                                  "required": ["x"]}}}
        for seed in range(6):
            r = self.s.chat("Define reparation.", temperature=1, seed=seed, max_tokens=300,
                            response_format={"type": "json_schema",
                                             "json_schema": {"name": "x", "schema": schema}})
            v = json.loads(answer(r))
            self.assertEqual(set(v), {"word", "n", "tags", "deep"})
            self.assertLessEqual(len(v["word"]), 12)
            self.assertIsInstance(v["n"], int)
            self.assertTrue(2 <= len(v["tags"]) <= 3 and set(v["tags"]) <= {"a", "b\n\"c"})
            self.assertTrue(v["deep"] is None or isinstance(v["deep"]["x"], bool))
        status, _, text = self.s.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "response_format": {
                "type": "json_schema", "json_schema": {"schema": {"type": "string",
                                                                  "pattern": "(?=a)"}}}})
        self.assertEqual(status, 400)
        self.assertIn("pattern", json.loads(text)["error"]["message"])

    def test_schema_with_bounds(self):
        schema = {"type": "object", "required": ["id", "day", "n", "price", "who"], "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
            "day": {"type": "string", "format": "date"},
            "n": {"type": "integer", "minimum": 17, "exclusiveMaximum": 31, "multipleOf": 3},
            "price": {"type": "number", "minimum": 0.5, "maximum": 2.25, "multipleOf": 0.05},
            "who": {"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "null"}]}}}
        tool = {"type": "function", "function": {"name": "put", "strict": True, "parameters": {
            **schema, "additionalProperties": False}}}
        user = "Define reparation."
        for seed in range(4):
            ask = {"temperature": 1, "seed": seed, "max_tokens": 300}
            r = self.s.chat(user, **ask, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            c = self.s.chat(user, **ask, tools=[tool], tool_choice="required",
                            parallel_tool_calls=False)
            call = c["choices"][0]["message"]["tool_calls"][0]["function"]
            for v in (json.loads(answer(r)), json.loads(call["arguments"])):
                self.assertRegex(v["id"], r"^[A-Z]{2}-[0-9]{3}$")
                datetime.date.fromisoformat(v["day"])
                self.assertIn(v["n"], (18, 21, 24, 27, 30))
                self.assertTrue(0.5 <= v["price"] <= 2.25)
                self.assertAlmostEqual(v["price"] / 0.05, round(v["price"] / 0.05))
                self.assertIn(v["who"], [None, *range(10)])

    def test_thinking_is_apart(self):
        r = self.s.chat("Define reparation.", reasoning_effort="medium", max_tokens=60)
        m = r["choices"][0]["message"]
        self.assertNotIn("<think>", (m["content"] or "") + m.get("reasoning_content", ""))
        self.assertNotIn("</think>", (m["content"] or "") + m.get("reasoning_content", ""))
        self.assertGreater(r["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)

    def test_text_completions(self):
        ids = self.s.json("/tokenize", {"content": "It was a"})["tokens"]
        self.assertEqual(self.s.json("/detokenize", {"tokens": ids})["content"], "It was a")
        a = self.s.json("/v1/completions", {"prompt": "It was a", "max_tokens": 8})
        b = self.s.json("/v1/completions", {"prompt": ids, "max_tokens": 8, "echo": True})
        self.assertEqual("It was a" + a["choices"][0]["text"], b["choices"][0]["text"])
        n = self.s.json("/v1/messages/count_tokens", {"messages": [
            {"role": "user", "content": "Define reparation."}]})["input_tokens"]
        self.assertEqual(n, self.s.chat("Define reparation.")["usage"]["prompt_tokens"])

    def test_many_at_once_equal_one_by_one(self):
        asks = [f"Define {w}." for w in WORDS] * 2
        alone = [answer(self.s.chat(a)) for a in asks]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = [answer(r) for r in pool.map(self.s.chat, asks)]
        self.assertEqual(alone, together)

    def test_bad_requests(self):
        chat = "/v1/chat/completions"
        user = [{"role": "user", "content": "x"}]
        cases = [(chat, b"{", 400, "JSON"), (chat, b"[]", 400, "object"), (chat, b"", 400, "empty"),
                 (chat, b"[" * 200 + b"]" * 200, 400, "nests"),
                 (chat, {"messages": []}, 400, "messages"),
                 (chat, {"messages": user, "n": 2}, 400, "'n'"),
                 (chat, {"messages": user, "temperature": "hot"}, 400, "temperature"),
                 (chat, {"messages": user, "logit_bias": {"99999999": 1}}, 400, "logit_bias"),
                 (chat, {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
                 (chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
                  "image_url"),
                 ("/v1/messages", {"messages": user}, 400, "max_tokens"),
                 ("/v1/responses", {"input": "x", "previous_response_id": "r"}, 400, "stored"),
                 ("/v1/embeddings", {"input": "x"}, 501, "embeddings"),
                 ("/nothing", {"input": "x"}, 404, ""), ("/health", {"input": "x"}, 405, ""),
                 ("/../etc/passwd", None, 404, "")]
        for path, body, want, word in cases:
            status, headers, text = self.s.ask(path, body)
            self.assertEqual(status, want, (path, body, text))
            self.assertIn(word, json.loads(text)["error"]["message"])
            self.assertEqual(headers["Content-Type"], "application/json")
        status, _, text = self.s.ask(chat, {"messages": [
            {"role": "user", "content": long_text(3000)}]})
        self.assertEqual(status, 400)
        self.assertRegex(json.loads(text)["error"]["message"], r"\d{4,} tokens.*4096")

    def test_foreign_hosts_and_origins(self):
        for headers, want in (({"Host": "evil.example"}, 403), ({"Host": "127.evil.example"}, 403),
                              ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                              ({"Host": "localhost:9"}, 200), ({}, 200)):
            self.assertEqual(self.s.ask("/v1/models", headers=headers)[0], want, headers)

    def test_page_and_metrics(self):
        status, headers, text = self.s.ask("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertLess(len(text), 250000)
        metrics = self.s.ask("/metrics")[2].decode()
        self.assertRegex(metrics, r"(?m)^regolith_generated_tokens_total \d+$")
        live = self.s.json("/live")
        self.assertEqual(len(live["experts"]) % live["n_expert"], 0)

    def test_pipelined(self):
        body = json.dumps({"messages": [{"role": "user", "content": "Define reparation."}],
                           "max_tokens": 4}).encode()
        one = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
               + str(len(body)).encode() + b"\r\n\r\n" + body)
        with socket.create_connection(("127.0.0.1", self.s.port), 30) as c:
            c.sendall(one + one)
            got = b""
            while got.count(b"HTTP/1.1 200") < 2 or got.count(b'"finish_reason"') < 2:
                piece = c.recv(65536)
                self.assertTrue(piece, got)
                got += piece


class Behaviour(unittest.TestCase):
    def test_prefix_reuse_gives_the_cold_bits(self):
        warm, cold = Server("--snapshots", "64M", "--ctx", "2048"), Server("--snapshots", "1")
        try:
            talk = [{"role": "user", "content": long_text(150)}]
            for turn in range(4):
                ask = {"messages": talk, "max_tokens": 12, "logprobs": True, "top_logprobs": 5}
                # Another talk in between takes the only session away.
                warm.chat("Define kindness.", max_tokens=2)
                a, b = (s.json("/v1/chat/completions", ask) for s in (warm, cold))
                self.assertEqual(a["choices"][0]["logprobs"], b["choices"][0]["logprobs"])
                again = warm.json("/v1/chat/completions", ask)
                self.assertEqual(again["choices"], a["choices"])
                n = again["usage"]["prompt_tokens"]
                self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], n)
                talk += [{"role": "assistant", "content": answer(a)},
                         {"role": "user", "content": f"Define {WORDS[turn]}."}]
                nxt = warm.json("/v1/chat/completions", {"messages": talk, "max_tokens": 1})
                self.assertGreater(nxt["usage"]["prompt_tokens_details"]["cached_tokens"], n // 2)
        finally:
            warm.stop()
            cold.stop()

    def test_prefixes_outlive_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--cache-dir", os.path.join(folder, "cache"), "--snapshots", "64M")
            talk = [{"role": "user", "content": long_text(200)}]
            first = Server(*flags)
            a = first.json("/v1/chat/completions", {"messages": talk, "max_tokens": 20})
            deadline = time.time() + 20
            while "disk_writes_total 2" not in first.ask("/metrics")[2].decode():
                self.assertLess(time.time(), deadline)
                time.sleep(0.05)
            first.kill()
            talk += [a["choices"][0]["message"], {"role": "user", "content": "Define kindness."}]
            ask = {"messages": talk, "max_tokens": 20, "logprobs": True, "top_logprobs": 5}
            second, cold = Server(*flags), Server("--snapshots", "1")
            try:
                b, c = (s.json("/v1/chat/completions", ask) for s in (second, cold))
                self.assertEqual(b["choices"][0]["logprobs"], c["choices"][0]["logprobs"])
                known = b["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertGreaterEqual(known, a["usage"]["prompt_tokens"])
                self.assertLess(b["usage"]["prompt_tokens"] - known, 60)
            finally:
                self.assertEqual(second.stop(), 0)
                cold.stop()
            # A damaged file is no answer and no error.
            for name in os.listdir(flags[1]):
                if name.endswith(".rgs"):
                    with open(os.path.join(flags[1], name), "r+b") as f:
                        f.seek(os.path.getsize(f.name) // 2)
                        f.write(b"damage")
            third = Server(*flags)
            try:
                d = third.json("/v1/chat/completions", ask)
                self.assertEqual(d["choices"][0]["logprobs"], c["choices"][0]["logprobs"])
                self.assertEqual(d["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            finally:
                third.stop()

    def test_clients_that_leave_make_room(self):
        s = Server("--ctx", "4096")
        try:
            for stream in (True, False):
                for text in (long_text(1500), "Who art thou?"):  # in prefill, in decode
                    body = json.dumps({"messages": [{"role": "user", "content": text}],
                                       "stream": stream, "ignore_eos": True}).encode()
                    c = socket.create_connection(("127.0.0.1", s.port), 30)
                    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                              b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    deadline = time.time() + 20
                    while s.json("/health")["active"] == 0 and time.time() < deadline:
                        time.sleep(0.01)
                    begin = time.time()
                    s.json("/health")
                    self.assertLess(time.time() - begin, 0.5)
                    c.close()
                    while s.json("/health")["active"] and time.time() < deadline:
                        time.sleep(0.02)
                    self.assertEqual(s.json("/health")["active"], 0)
            self.assertRegex(s.ask("/metrics")[2].decode(), r"requests_left_total 4\n")
        finally:
            s.stop()

    def test_broken_requests_hold_no_connections(self):
        """More of them than the server has connections, each with its hang-up right behind."""
        s = Server()
        try:
            for _ in range(400):
                with socket.create_connection(("127.0.0.1", s.port), 10) as c:
                    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                              b"Content-Length: 100\r\n\r\n{")
            begin = time.time()
            s.json("/health")
            self.assertLess(time.time() - begin, 5)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_queue_is_bounded(self):
        s = Server("--queue", "1")
        try:
            ask = {"messages": [{"role": "user", "content": "Who art thou?"}], "max_tokens": 300,
                   "ignore_eos": True}
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                got = list(pool.map(lambda _: s.ask("/v1/chat/completions", ask), range(6)))
            codes = sorted(g[0] for g in got)
            self.assertEqual(codes[0], 200)
            self.assertEqual(codes[-1], 429)
            refused = next(g for g in got if g[0] == 429)
            self.assertEqual(refused[1]["Retry-After"], "1")
        finally:
            s.stop()

    def test_key(self):
        s = Server("--api-key", "secret")
        try:
            self.assertEqual(s.ask("/v1/models")[0], 401)
            self.assertEqual(s.ask("/v1/models", headers={"x-api-key": "secreT"})[0], 401)
            self.assertEqual(s.ask("/v1/models", headers={"x-api-key": "secret"})[0], 200)
            self.assertEqual(
                s.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
            self.assertEqual(s.ask("/health")[0], 200)
        finally:
            s.stop()

    def test_an_open_host_wants_a_key(self):
        r = subprocess.run([BINARY, "serve", "-m", MODEL, "--host", "0.0.0.0", "--port", "0"],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 1)
        self.assertIn("--api-key", r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1)

    def test_a_stop_ends_replies_cleanly(self):
        s = Server("--grace", "1")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reply = pool.submit(s.ask, "/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Who art thou?"}], "stream": True,
                "ignore_eos": True, "max_tokens": 4000})
            time.sleep(0.5)
            begin = time.time()
            self.assertEqual(s.stop(), 0)
            self.assertLess(time.time() - begin, 8)
            text = reply.result()[2].decode()
            self.assertIn("[DONE]", text)

    def test_heartbeats(self):
        s = Server("--heartbeat", "1")
        try:
            ask = {"messages": [{"role": "user", "content": "Who art thou?"}], "stream": True,
                   "ignore_eos": True, "max_tokens": 3900}
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                got = list(pool.map(lambda _: s.ask("/v1/chat/completions", ask), range(2)))
            beats = [g[2].count(b": still here") for g in got]
            # Whoever waited in the queue for more than a second heard of it.
            self.assertGreaterEqual(max(beats), 1)
            self.assertEqual(min(beats), 0)  # and nobody else
        finally:
            s.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
