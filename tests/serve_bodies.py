#!/usr/bin/python3
"""Broken bodies to a live server: serve_bodies.py BINARY [COUNT]. Requests of every dialect with
bytes changed, cut, doubled, or values of other types. A body that is no JSON is a 400; one that
still is may also be served. Nothing else: no 5xx, no hang, no end of the server."""
import copy
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys

BINARY = sys.argv[1]
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "regolith-demo-q4.gguf")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
USER = {"role": "user", "content": "Define kindness."}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 4}}}
REQUESTS = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 1, "tools": [TOOL],
                              "tool_choice": "auto", "stop": ["a"], "logit_bias": {"5": 1},
                              "temperature": 0.5, "seed": 1, "logprobs": True, "top_logprobs": 1}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 1, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1, "logprobs": 1}),
    ("/v1/messages", {"max_tokens": 1, "system": "s", "messages": [
        USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f",
                                                 "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                      "content": "r"}]}]}),
    ("/v1/responses", {"input": [USER], "max_output_tokens": 1, "text": {"format": {
        "type": "json_object"}}}),
    ("/tokenize", {"content": "abc"}), ("/detokenize", {"tokens": [5, 6]})]
VALUES = [None, True, -1, 0, 1e300, 2**62, "", "x", [], {}, [[]], {"a": {}}, "\ud7ff", [None]]


def places(v, path=()):
    yield path
    items = v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ()
    for k, x in items:
        yield from places(x, path + (k,))


def other_value(r, body):
    body = copy.deepcopy(body)
    path = r.choice(list(places(body)))
    if not path:
        return r.choice(VALUES)
    at = body
    for k in path[:-1]:
        at = at[k]
    at[path[-1]] = r.choice(VALUES)
    return body


def broken(r, body):
    how = r.randrange(5)
    if how < 2:
        return json.dumps(other_value(r, body)).encode()
    data = bytearray(json.dumps(body).encode())
    if how == 2:
        return bytes(data[:r.randrange(len(data))])
    for _ in range(1 + r.randrange(4)):
        data[r.randrange(len(data))] = r.randrange(256)
    if how == 3:
        at = r.randrange(len(data))
        data[at:at] = data[r.randrange(len(data)):][:40]
    return bytes(data)


def is_json(data):
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def main():
    p = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", "--no-think"],
                         stderr=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)/", p.stderr.readline()).group(1))
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    r = random.Random(7)
    counts, faults = {}, 0
    for i in range(COUNT):
        path, body = r.choice(REQUESTS)
        data = broken(r, body)
        # Without a limit a reply may run to the end of the context.
        limited = re.search(rb'"max_(output_)?tokens": 1\b', data) or "max" not in str(body)
        if is_json(data) and not limited:
            continue
        c.request("POST", path, data)
        reply = c.getresponse()
        reply.read()
        counts[reply.status] = counts.get(reply.status, 0) + 1
        fine = 400 <= reply.status < 500 or (reply.status == 200 and is_json(data))
        if not fine:
            faults += 1
            print(f"FAIL {i}: {reply.status} for {path} {data!r}")
    c.close()
    p.send_signal(signal.SIGTERM)
    code = p.wait(60)
    p.stderr.close()
    print(f"{counts}, status {code}")
    return 1 if faults or code or counts.get(400, 0) < COUNT / 3 else 0


sys.exit(main())
