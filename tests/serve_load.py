#!/usr/bin/python3
"""Many rude clients at once: serve_load.py BINARY [SECONDS] [CLIENTS]. Random disconnects, slow
readers, half-closed sockets, pipelined requests, oversized and broken bodies, against a server with
four sessions. Every reply that is complete must equal the one of a client alone; the server's
memory must stay flat; it must end with status 0. A last line says what happened."""
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
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 64
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "regolith-demo-q4.gguf")
PROMPTS = [f"Define {w}." for w in ("reparation", "abscond", "kindness", "egotist", "happiness")]
PROMPTS += [" ".join(["kindness abscond"] * 60), "Who art thou?"]


def start():
    p = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", "--no-think", "--temp", "0",
                          "--parallel", "4", "--snapshots", "16M", "--queue", "48", "--grace", "2",
                          "--draft", "auto"],
                         stderr=subprocess.PIPE, text=True)
    line = p.stderr.readline()
    threading.Thread(target=p.stderr.read, daemon=True).start()
    return p, int(re.search(r":(\d+)/", line).group(1))


def request(prompt, stream, n=12):
    body = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": n,
                       "stream": stream}).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n" % len(body)) + body


def read_all(c, slow=0.0, deadline=60):
    got, end = b"", time.time() + deadline
    while time.time() < end:
        piece = c.recv(256 if slow else 65536)
        if not piece:
            return got
        got += piece
        if slow:
            time.sleep(slow)
    raise TimeoutError("a reply takes more than a minute")


def text_of(raw, stream):
    """The answer of a complete reply; None when it was refused or cut off."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        if not re.match(rb"HTTP/1.1 (4\d\d|503)", head):
            raise AssertionError(head[:200])
        return None
    if not stream:
        return json.loads(body)["choices"][0]["message"]["content"]
    if b"[DONE]" not in body:
        raise AssertionError(body[-200:])
    events = re.findall(rb"data: (\{.*\})", body)
    deltas = [json.loads(e) for e in events]
    return "".join(d["choices"][0]["delta"].get("content", "") for d in deltas if d.get("choices"))


class Crowd:
    def __init__(self, port, wanted):
        self.port, self.wanted = port, wanted
        self.end = time.time() + SECONDS
        self.lock = threading.Lock()
        self.counts, self.faults = {}, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def act(self, r):
        prompt, stream = r.choice(PROMPTS), r.random() < 0.6
        how = r.choice(["polite"] * 5 + ["leave"] * 2 + ["half", "slow", "big", "broken", "twice"])
        with socket.create_connection(("127.0.0.1", self.port), 60) as c:
            if how == "big":
                c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Length: 99999999999\r\n\r\n")
                if b" 413 " not in c.recv(4096):
                    raise AssertionError("an oversized body is not refused")
            elif how == "broken":
                c.sendall(request(prompt, stream)[:-r.randrange(1, 40)])
            elif how == "leave":
                c.sendall(request(prompt, stream, 400))
                time.sleep(r.random() * 0.3)
            elif how == "half":
                c.sendall(request(prompt, stream))
                c.shutdown(socket.SHUT_WR)
                c.recv(4096)
            elif how == "twice":
                one = request(prompt, False).replace(b"Connection: close\r\n", b"")
                c.sendall(one + request(prompt, False))
                got = read_all(c)
                if got.count(b"HTTP/1.1 ") != 2:
                    raise AssertionError("two requests, not two replies")
            else:
                c.sendall(request(prompt, stream))
                text = text_of(read_all(c, 0.002 if how == "slow" else 0), stream)
                if text is None:
                    how = "refused"
                elif text != self.wanted[prompt]:
                    raise AssertionError(f"{prompt[:30]}: {text!r}, not {self.wanted[prompt]!r}")
        self.count(how)

    def client(self, seed):
        r = random.Random(seed)
        while time.time() < self.end and not self.faults:
            try:
                self.act(r)
            except (ConnectionError, BrokenPipeError):
                self.count("reset")
            except Exception as e:  # noqa: the thread's report
                self.faults.append(f"{type(e).__name__}: {e}")


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def main():
    p, port = start()
    wanted = {}
    for prompt in PROMPTS:
        with socket.create_connection(("127.0.0.1", port), 60) as c:
            c.sendall(request(prompt, False))
            wanted[prompt] = text_of(read_all(c), False)
    crowd = Crowd(port, wanted)
    threads = [threading.Thread(target=crowd.client, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    time.sleep(SECONDS / 2)
    middle = rss_kib(p.pid)
    for t in threads:
        t.join()
    after = rss_kib(p.pid)
    p.send_signal(signal.SIGTERM)
    code = p.wait(60)
    print(f"{crowd.counts}, memory {middle} -> {after} KiB, status {code}")
    sanitized = "asan" in BINARY or "tsan" in BINARY or "soak" in BINARY
    if after > middle * 1.1 + 4096 and not sanitized:
        crowd.faults.append(f"memory grows from {middle} to {after} KiB")
    if code != 0:
        crowd.faults.append(f"the server ends with {code}")
    if crowd.counts.get("polite", 0) < CLIENTS / 4:
        crowd.faults.append("hardly anyone was served")
    for fault in crowd.faults:
        print(f"FAIL {fault}")
    return 1 if crowd.faults else 0


sys.exit(main())
