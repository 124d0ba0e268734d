#!/usr/bin/python3
"""Many rude clients at once: serve_load.py BINARY [SECONDS] [CLIENTS]. Random disconnects, slow
readers, half-closed sockets, pipelined requests, oversized and broken bodies, against a server with
four sessions. Every reply that is complete must equal the one of a client alone; the server's
memory must stay flat; nobody may wait longer than HANG_SECONDS; it must end with status 0. A line
every few seconds says how far it is, and the last one what happened."""
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
HANG_SECONDS = 60  # one request of one client
SAY_SECONDS = 10


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


def read_all(c, slow=0.0):
    got, end = b"", time.time() + HANG_SECONDS
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
        self.doing = {}  # client: (what, since when)
        self.longest = (0.0, "")

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def act(self, r, client):
        prompt, stream = r.choice(PROMPTS), r.random() < 0.6
        how = r.choice(["polite"] * 5 + ["leave"] * 2 + ["half", "slow", "big", "broken", "twice"])
        begin = time.time()
        self.doing[client] = (f"{how}, {'stream' if stream else 'whole'}, {prompt[:20]!r}", begin)
        with socket.create_connection(("127.0.0.1", self.port), HANG_SECONDS) as c:
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
        with self.lock:
            self.longest = max(self.longest, (time.time() - begin, self.doing[client][0]))

    def client(self, seed):
        r = random.Random(seed)
        while time.time() < self.end and not self.faults:
            try:
                self.act(r, seed)
            except (ConnectionError, BrokenPipeError):
                self.count("reset")
            except Exception as e:  # noqa: the thread's report
                self.faults.append(f"{self.doing[seed][0]}: {type(e).__name__}: {e}")
        self.doing.pop(seed, None)

    def hanging(self):
        """Who waits for longer than anyone may, in words."""
        now = time.time()
        return [f"client {k} hangs for {now - since:.0f} s: {what}"
                for k, (what, since) in sorted(self.doing.copy().items())
                if now - since > HANG_SECONDS + 5]


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def wanted_alone(port):
    wanted = {}
    for prompt in PROMPTS:
        with socket.create_connection(("127.0.0.1", port), HANG_SECONDS) as c:
            c.sendall(request(prompt, False))
            wanted[prompt] = text_of(read_all(c), False)
    return wanted


def watch(crowd, threads, pid):
    """Until all clients are gone or one hangs. Returns the memory in KiB at each look."""
    begin, said, seen = time.time(), 0, []
    while any(t.is_alive() for t in threads):
        time.sleep(0.25)
        now = time.time()
        if crowd.hanging():
            crowd.faults += crowd.hanging()
            break
        if now - said >= SAY_SECONDS:
            said = now
            seen.append(rss_kib(pid))
            print(f"{now - begin:4.0f} s: {sum(crowd.counts.values())} done, "
                  f"{crowd.counts.get('refused', 0)} refused, "
                  f"{crowd.counts.get('reset', 0)} reset, "
                  f"{len(crowd.doing)} clients, {seen[-1]} KiB", flush=True)
    return seen


def judge(crowd, seen, code):
    sanitized = "asan" in BINARY or "tsan" in BINARY or "soak" in BINARY
    half = (len(seen) + 1) // 2
    middle, after = max(seen[:half]), max(seen[half:])  # peaks: a single look may meet a dip
    if after > middle * 1.1 + 4096 and not sanitized:
        crowd.faults.append(f"memory grows from {middle} to {after} KiB")
    if code != 0:
        crowd.faults.append(f"the server ends with {code}")
    if crowd.counts.get("polite", 0) < CLIENTS / 4:
        crowd.faults.append("hardly anyone was served")


def main():
    p, port = start()
    crowd = Crowd(port, wanted_alone(port))
    threads = [threading.Thread(target=crowd.client, args=(i,), daemon=True)
               for i in range(CLIENTS)]
    for t in threads:
        t.start()
    seen = watch(crowd, threads, p.pid) + [rss_kib(p.pid)]
    p.send_signal(signal.SIGTERM)
    try:
        code = p.wait(60)
    except subprocess.TimeoutExpired:
        p.kill()
        code = "nothing: it was killed a minute after SIGTERM"
    judge(crowd, seen, code)
    print(f"{crowd.counts}, longest {crowd.longest[0]:.1f} s ({crowd.longest[1]}), "
          f"memory {' '.join(str(k) for k in seen)} KiB, status {code}", flush=True)
    for fault in crowd.faults:
        print(f"FAIL {fault}")
    return 1 if crowd.faults else 0


sys.exit(main())
