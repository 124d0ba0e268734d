#!/usr/bin/python3
"""tools/tally.py must count what ctest really did: a test that never ran has not passed.

A hand-made test folder goes through the installed ctest; its own file is then added up.
"""
import os
import subprocess
import sys
import tempfile
import unittest

TALLY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools",
                     "tally.py")
TESTS = {
    "good": ('"true"', ""),
    "good_too": ('"true"', ""),
    "bad": ('"false"', ""),
    "skipped": ('"sh" "-c" "exit 77"', "SKIP_RETURN_CODE 77"),
    "absent": ('"no-such-program-here"', ""),
    "killed": ('"sh" "-c" "kill -SEGV $$"', ""),
    "slow": ('"sleep" "5"', "TIMEOUT 1"),
}


class Tally(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def ctest(self, names, xml):
        with open(self.path("CTestTestfile.cmake"), "w", encoding="utf-8") as f:
            for name in names:
                command, properties = TESTS[name]
                f.write(f"add_test({name} {command})\n")
                if properties:
                    f.write(f"set_tests_properties({name} PROPERTIES {properties})\n")
        subprocess.run(["ctest", "--test-dir", self.folder, "--output-junit", self.path(xml)],
                       capture_output=True, check=False)

    def tally(self, *args):
        run = subprocess.run([sys.executable, TALLY, *args], capture_output=True, text=True,
                             check=False)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout.splitlines()

    def test_every_outcome(self):
        self.ctest(TESTS, "all.xml")
        status, lines = self.tally(self.path("all.xml"))
        self.assertEqual(lines[-1], "2 passed, 4 failed, 1 skipped")
        self.assertEqual(set(lines[:-1]), {"skipped: all: skipped", "failed: all: bad",
                                           "failed: all: absent", "failed: all: killed",
                                           "failed: all: slow"})
        self.assertEqual(status, 1)

    def test_sum_and_plain(self):
        self.ctest(["good", "skipped"], "one.xml")
        self.ctest(["good_too"], "two.xml")
        files = (self.path("one.xml"), self.path("two.xml"))
        self.assertEqual(self.tally(*files)[1][-1], "2 passed, 0 failed, 1 skipped")
        status, lines = self.tally("--plain", *files)
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed"))

    def test_nothing_is_no_success(self):
        self.assertEqual(self.tally(self.path("none.xml"))[0], 1)
        self.ctest(["skipped"], "skip.xml")
        self.assertEqual(self.tally(self.path("skip.xml")),
                         (1, ["skipped: skip: skipped", "0 passed, 0 failed, 1 skipped"]))
        with open(self.path("cut.xml"), "w", encoding="utf-8") as f:
            f.write("<testsuite><testcase")
        status, lines = self.tally(self.path("cut.xml"))
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_record(self):
        xml = self.path("steps.xml")
        self.tally("--record", xml, "format", "pass")
        self.tally("--record", xml, "tidy <&>", "fail")
        self.assertEqual(self.tally(xml), (1, ["failed: steps: tidy <&>", "1 passed, 1 failed"]))


if __name__ == "__main__":
    unittest.main()
