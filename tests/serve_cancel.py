#!/usr/bin/python3
"""Clients that start and leave at any moment: serve_cancel.py BINARY [CYCLES]. Requests of every
kind are cut off while they wait, while their prompt is read and while they are answered. Behind all
of them every session is free again, a reply is what it was before, and the server ends with status
0 (under a sanitizer: without a leak). Meanwhile /health is asked and must answer at once."""
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

BINARY = sys.argv[1]
CYCLES = int(sys.argv[2]) if len(sys.argv) > 2 else 60
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "regolith-demo-q4.gguf")
SLOW = any(word in BINARY for word in ("asan", "tsan", "soak"))
HEALTH_MS = 50
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "required": ["a", "b"],
    "properties": {"a": {"type": "string"}, "b": {"type": "integer", "minimum": 3}}}}}


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request(method, path, None if body is None else json.dumps(body))
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, text


def body_of(r):
    words = " ".join(["kindness abscond reparation"] * r.choice([1, 1, 40, 300]))
    body = {"messages": [{"role": "user", "content": f"Define {words}."}], "max_tokens": 300,
            "stream": r.random() < 0.7, "temperature": r.choice([0, 1]), "seed": r.randrange(9)}
    if r.random() < 0.3:
        body["response_format"] = FORM
    if r.random() < 0.2:
        body["logprobs"] = True
    return body


def start_and_leave(port, r):
    data = json.dumps(body_of(r)).encode()
    head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(data))
    with socket.create_connection(("127.0.0.1", port), 60) as c:
        c.sendall(head + data)
        how = r.randrange(4)
        if how == 0:  # at once
            return
        if how == 1:  # behind the first bytes of the reply
            c.settimeout(0.3 * r.random() + 0.01)
            try:
                c.recv(1)
            except TimeoutError:
                pass
            return
        time.sleep(r.random() * 0.15)
        if how == 2:
            c.shutdown(socket.SHUT_WR)
        else:  # with a reset
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def health_times(port, stop, times):
    while not stop.is_set():
        begin = time.monotonic()
        status, _ = ask(port, "GET", "/health")
        times.append((time.monotonic() - begin) * 1e3)
        assert status == 200
        time.sleep(0.01)


def wait_until_idle(port):
    end = time.time() + 120
    while time.time() < end:
        state = json.loads(ask(port, "GET", "/health")[1])
        if state["active"] == 0 and state["queued"] == 0:
            return True
        time.sleep(0.05)
    return False


def main():
    p = subprocess.Popen(
        [BINARY, "serve", "-m", MODEL, "--port", "0", "--no-think", "--parallel", "4",
         "--queue", "256", "--snapshots", "16M", "--grace", "2", "--draft", "auto"],
        stderr=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)/", p.stderr.readline()).group(1))
    errors = []
    reader = threading.Thread(target=lambda: errors.append(p.stderr.read()), daemon=True)
    reader.start()
    fixed = {"messages": [{"role": "user", "content": "Define kindness."}], "max_tokens": 40,
             "temperature": 0, "logprobs": True}
    before = json.loads(ask(port, "POST", "/v1/chat/completions", fixed)[1])["choices"]
    faults, times, stop = [], [], threading.Event()
    watcher = threading.Thread(target=health_times, args=(port, stop, times))
    watcher.start()

    def client(seed):
        r = random.Random(seed)
        for _ in range(CYCLES // 8 + 1):
            try:
                start_and_leave(port, r)
            except ConnectionError:
                pass

    clients = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for t in clients:
        t.start()
    for t in clients:
        t.join()
    stop.set()
    watcher.join()
    if not wait_until_idle(port):
        faults.append("sessions are not free again")
    after = json.loads(ask(port, "POST", "/v1/chat/completions", fixed)[1])["choices"]
    if after != before:
        faults.append("a reply is another one than before")
    p.send_signal(signal.SIGTERM)
    code = p.wait(120)
    reader.join(10)
    if code != 0:
        faults.append(f"the server ends with {code}: {errors}")
    times.sort()
    rank = lambda share: times[min(len(times) - 1, int(share * len(times)))]  # noqa
    print(f"{CYCLES} cycles; /health {len(times)} times: median {rank(.5):.1f} ms, "
          f"p90 {rank(.9):.1f}, p99 {rank(.99):.1f}, most {times[-1]:.1f}")
    # The tenth behind it belongs to a machine that does other things too.
    if rank(0.9) > HEALTH_MS and not SLOW:
        faults.append(f"/health takes {rank(.9):.0f} ms")
    for fault in faults:
        print(f"FAIL {fault}")
    return 1 if faults else 0


sys.exit(main())
