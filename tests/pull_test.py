#!/usr/bin/python3
"""regolith pull against a server that misbehaves: pull_test.py PROGRAM"""
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from bad_server import Hub  # noqa: E402
from tool import Tool, small_files  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODEL = os.path.join(ROOT, "tests", "data", "tiny", "a-mix.gguf")


def becomes(path, size):
    """Whether a file gets that size, which takes its time on a busy machine."""
    for _ in range(1500):
        if os.path.exists(path) and os.path.getsize(path) >= size:
            return os.path.getsize(path) == size
        time.sleep(0.02)
    return False


def main():
    program = sys.argv[1]
    with open(MODEL, "rb") as f:
        content = f.read()
    hub = Hub(content)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, HF_ENDPOINT=hub.url, REGOLITH_MODELS=folder, HF_TOKEN="secret",
                   REGOLITH_PULL_WAIT_MS="1")

        def run(*words):
            return subprocess.run([program, *words], capture_output=True, text=True, env=env)

        def check(what, good, done=None):
            if not good:
                failures.append(what)
                print("FAILED", what, done and (done.returncode, done.stdout, done.stderr))

        def left(repo):
            base = os.path.join(folder, "u", repo)
            return sorted(os.listdir(base)) if os.path.isdir(base) else []

        for repo in ("plain", "norange", "cut", "redirect", "busy"):
            done = run("pull", f"hf:u/{repo}:q4_k")
            path = os.path.join(folder, "u", repo, "m-Q4_K.gguf")
            check(repo, done.returncode == 0 and done.stdout == path + "\n", done)
            with open(path, "rb") as f:
                check(repo + " bytes", f.read() == content)
            check(repo + " leaves nothing", left(repo) == ["m-Q4_K.gguf"])
        check("cut is resumed", sum(1 for r in hub.requests if r[0] == "cut" and r[2]) >= 3)
        check("token", all(r[3] == "Bearer secret" for r in hub.requests if r[0] == "plain"))
        before = len(hub.requests)
        check("kept", run("pull", "hf:u/plain").returncode == 0 and len(hub.requests) == before)

        for repo, word in (("short", "were announced"), ("long", "were announced"),
                           ("hash", "sha256"), ("grow", "were announced"), ("never", "503"),
                           ("part", "1 of 2 parts"), ("evil", "no GGUF file"),
                           ("many", "2 models fit")):
            done = run("pull", f"hf:u/{repo}")
            lines = done.stderr.strip().splitlines()
            check(repo, done.returncode == 1 and len(lines) == 1 and word in lines[0]
                  and lines[0].startswith("regolith: pull: "), done)
            check(repo + " has no file", not any(n.endswith(".gguf") for n in left(repo)))
        done = run("pull", "hf:u/many:Q8_0")
        check("choice", done.returncode == 0 and left("many") == ["m-Q8_0.gguf"], done)
        done = run("pull", "hf:u/split")
        check("split", done.returncode == 0 and len(done.stdout.splitlines()) == 2
              and len(left("split")) == 2, done)

        # A run that was cut off leaves a part; the next one asks for the rest only.
        os.remove(os.path.join(folder, "u", "plain", "m-Q4_K.gguf"))
        with open(os.path.join(folder, "u", "plain", "m-Q4_K.gguf.part"), "wb") as f:
            f.write(content[:1000])
        done = run("pull", "hf:u/plain")
        check("resume", done.returncode == 0 and hub.requests[-1][2] == "bytes=1000-", done)
        # One with wrong bytes is noticed by its hash and fetched anew.
        os.remove(os.path.join(folder, "u", "plain", "m-Q4_K.gguf"))
        with open(os.path.join(folder, "u", "plain", "m-Q4_K.gguf.part"), "wb") as f:
            f.write(b"\0" * 1000)
        done = run("pull", "hf:u/plain")
        check("mends", done.returncode == 0 and hub.requests[-1][2] is None, done)

        # Killed at any point, with a part written; and a drive that gets full keeps what it took.
        held = os.path.join(folder, "u", "held", "m-Q4_K.gguf")
        for i in range(1, 7):
            hub.limit = len(content) * i // 7
            pull = subprocess.Popen([program, "pull", "hf:u/held"], env=env,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            check(f"part {i} is written", becomes(held + ".part", hub.limit))
            pull.kill()
            check(f"killed {i}", pull.wait() == -signal.SIGKILL and not os.path.exists(held))
            check(f"asked for the rest {i}", hub.requests[-1][2] == (
                f"bytes={len(content) * (i - 1) // 7}-" if i > 1 else None), hub.requests[-1])
        hub.limit = None
        done = run("pull", "hf:u/held")
        with open(held, "rb") as f:
            check("killed pulls go on", done.returncode == 0 and f.read() == content, done)
        check("killed pulls leave nothing", left("held") == ["m-Q4_K.gguf"], left("held"))
        os.remove(held)
        done = Tool(program)("pull", "hf:u/held", env=env, preexec_fn=small_files(200000))
        check("full drive", done.returncode == 1 and "File too large" in done.stderr
              and len(done.stderr.strip().splitlines()) == 1, done)
        check("full drive: no file", not os.path.exists(held))
        check("full drive: goes on", run("pull", "hf:u/held").returncode == 0
              and hub.requests[-1][2] == "bytes=200000-", hub.requests[-1])
        with open(held, "rb") as f:
            check("full drive: bytes", f.read() == content)

        good = hashlib.sha256(content).hexdigest()
        url = hub.url + "/u/plain/resolve/main/m-Q4_K.gguf"
        check("url", run("pull", url, "--sha256", good).returncode == 0)
        os.remove(os.path.join(folder, "url", "m-Q4_K.gguf"))
        done = run("pull", url, "--sha256", "0" * 64)
        check("url hash", done.returncode == 1 and "sha256" in done.stderr, done)

        done = run("inspect", "-m", "hf:u/plain:q4_k")
        check("-m hf:", done.returncode == 0 and "token_embd" in done.stdout, done)
        done = run("inspect", "-m", "hf:u/nothing")
        check("-m absent", done.returncode == 1 and "regolith pull" in done.stderr, done)
        for bad in ("hf:u", "hf:../x", "hf:u/..", "x"):
            check(bad, run("pull", bad).returncode == 1)
    hub.close()
    sys.exit(f"{len(failures)} failed" if failures else 0)


if __name__ == "__main__":
    main()
