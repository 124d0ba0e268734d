#!/usr/bin/python3
"""regolith chat through a pipe and on a pseudo terminal: terminal_chat_test.py BINARY."""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = sys.argv[1]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models", "regolith-demo-q4.gguf")
COMMAND = [BINARY, "chat", "-m", MODEL, "--no-think", "--temp", "0"]


def talk(text, *flags):
    return subprocess.run([*COMMAND, *flags], input=text, capture_output=True, text=True,
                          timeout=120)


class Terminal:
    def __init__(self, *flags):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(BINARY, [*COMMAND, *flags])

    def until(self, text, seconds=60):
        got, end = "", time.time() + seconds
        while text not in got:
            if time.time() > end:
                raise AssertionError(f"{text!r} does not come: {got[-300:]!r}")
            if select.select([self.fd], [], [], 0.2)[0]:
                got += os.read(self.fd, 65536).decode(errors="replace")
        return got

    def write(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Chat(unittest.TestCase):
    def test_drafts_and_routing(self):
        text = "Define reparation.\nDefine kindness.\nDefine reparation.\n/stats\n/regen\n/quit\n"
        plain = talk(text).stdout
        for flags in (("--draft", "suffix"), ("--draft", "auto", "--draft-fixed")):
            r = talk(text, *flags)
            self.assertEqual(r.returncode, 0)
            strip = lambda s: [x for x in s.split("\n") if "tokens of context" not in x]  # noqa
            self.assertEqual(strip(r.stdout), strip(plain))
            self.assertRegex(r.stderr, r"draft: [0-9]+ of [1-9][0-9]* accepted")
        flags = ("--arena-experts", "80", "--chunk", "64", "--moce", "1")
        one, two = talk(text, *flags), talk(text, *flags, "--draft", "auto", "--draft-fixed")
        strip = lambda s: [x for x in s.split("\n") if "tokens of context" not in x]  # noqa
        self.assertEqual(strip(one.stdout), strip(two.stdout))
        self.assertRegex(one.stderr, r"moce: strength 1, [1-9][0-9]* tokens, [1-9][0-9]* of")
        # What routing made is not gone on from: the same turn alone says the same.
        alone = talk("Define reparation.\n/quit\n", *flags).stdout
        self.assertEqual(alone.strip(), one.stdout[:len(alone.strip())])

    def test_a_conversation_through_a_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "talk.json")
            r = talk(f'Define reparation.\n"""\nDefine\nkindness.\n"""\n/save {path}\n/quit\n')
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            self.assertIn("Reparation, n. Satisfaction that is made", r.stdout)
            self.assertNotIn("\033", r.stdout)  # colours are for terminals
            with open(path, encoding="utf-8") as f:
                saved = json.load(f)["messages"]
            self.assertEqual([m["role"] for m in saved], ["user", "assistant"] * 2)
            self.assertEqual(saved[2]["content"].strip(), "Define\nkindness.")
            again = talk(f"/load {path}\n/regen\n")
            self.assertEqual(again.returncode, 0)
            self.assertIn(saved[3]["content"], again.stdout)

    def test_commands_that_fail_say_so(self):
        r = talk("/load /nothing/here\n/bogus\n/regen\n/help\nDefine reparation.\n")
        self.assertEqual(r.returncode, 0)
        self.assertIn("/nothing/here", r.stderr)
        self.assertIn("unknown command /bogus", r.stdout)
        self.assertIn("there is no reply yet", r.stdout)
        self.assertIn("/system TEXT", r.stdout)
        self.assertIn("Reparation, n.", r.stdout)

    def test_a_full_context_is_told(self):
        r = talk("kindness " * 60 + "\n/clear\nDefine reparation.\n", "--ctx", "64")
        self.assertIn("the context holds 64", r.stderr)
        self.assertIn("Reparation, n.", r.stdout)

    def test_the_terminal(self):
        t = Terminal("--ignore-eos")
        t.until("Ctrl-D ends")
        t.write("Who art thou?\r")
        t.until("Bierce")
        os.kill(t.pid, signal.SIGINT)  # stops the reply, not the program
        t.until("> ")
        t.write("/stats\r")
        t.until("tokens of context")
        t.write("/quit\r")
        self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
