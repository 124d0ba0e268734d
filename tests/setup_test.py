#!/usr/bin/python3
"""tools/setup.sh on machines of several kinds: Debian as root, with sudo, without; no apt at all.

Stubs of dpkg-query, apt-get, id and sudo stand first on PATH; nothing of the real system is asked
or changed.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

SETUP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools",
                     "setup.sh")
TOOLS = "bash sed tr sort comm dirname cat env".split()
PACKAGES = """# a comment
[build]  # make
gcc
libone-dev    # why
[check]
two
[ci]
three
[later]
four
"""
STUBS = {
    "dpkg-query": 'while read -r p; do echo "installed $p "; done <"$STATE/installed"\n'
                  'echo "config-files two "\n',
    # Installs what it is asked for, but for the packages in $STATE/refused.
    "apt-get": 'echo "apt-get $*" >>"$STATE/calls"\n'
               '[ "$1" = install ] || exit 0\n'
               'for p; do case $p in install | -*) ;; *)\n'
               '  while read -r bad; do [ "$p" != "$bad" ] || exit 100; done <"$STATE/refused"\n'
               '  echo "$p" >>"$STATE/installed" ;; esac; done\n',
    "sudo": 'echo "sudo $*" >>"$STATE/calls"\n[ "$1" != -n ] || shift\n"$@"\n',
}


class Setup(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = holder.name
        self.bin = os.path.join(self.root, "bin")
        os.makedirs(self.bin)
        os.makedirs(os.path.join(self.root, "tools"))
        shutil.copy(SETUP, os.path.join(self.root, "tools", "setup.sh"))
        self.write("tools/packages.txt", PACKAGES)
        self.write("refused", "")
        self.write("calls", "")
        for tool in TOOLS + ["true"]:
            os.symlink(shutil.which(tool), os.path.join(self.bin, tool))

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
            f.write(text)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as f:
            return f.read().split("\n")[:-1]

    def stub(self, name, body):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/bash\n" + body)
        os.chmod(path, 0o755)

    def debian(self, user, installed, tools=("dpkg-query", "apt-get")):
        self.stub("id", f"echo {user}\n")
        for tool in tools:
            self.stub(tool, STUBS[tool])
        self.write("installed", "".join(p + "\n" for p in installed))

    def setup_group(self, group):
        run = subprocess.run(["/bin/bash", os.path.join(self.root, "tools", "setup.sh"), group],
                             env={"PATH": self.bin, "STATE": self.root}, capture_output=True,
                             text=True, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(run.stdout, "")
        return run.returncode, run.stderr.splitlines()

    def test_silent_when_complete(self):
        self.debian(1000, ["gcc", "libone-dev", "other"])
        self.assertEqual(self.setup_group("build"), (0, []))
        self.assertEqual(self.read("calls"), [])

    def test_root_installs_its_group_and_those_before(self):
        self.debian(0, ["gcc"])
        status, lines = self.setup_group("check")
        self.assertEqual(status, 0)
        self.assertEqual(lines, ["setup: installing 2 packages with apt: libone-dev two"])
        self.assertEqual(self.read("calls"), [
            "apt-get update -q", "apt-get install -q -y --no-install-recommends libone-dev two"])
        self.assertEqual(self.setup_group("check"), (0, []))
        self.assertEqual(self.setup_group("ci")[1],
                         ["setup: installing 1 packages with apt: three"])
        self.assertNotIn("four", self.read("installed"))

    def test_user_with_sudo(self):
        self.debian(1000, ["gcc"], tools=("dpkg-query", "apt-get", "sudo"))
        self.assertEqual(self.setup_group("build")[0], 0)
        calls = self.read("calls")
        self.assertIn("sudo apt-get update -q", calls)
        self.assertIn("sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y "
                      "--no-install-recommends libone-dev", calls)

    def test_user_without_sudo(self):
        self.debian(1000, ["gcc"])
        self.assertEqual(self.setup_group("check"), (1, [
            "setup: neither root nor able to use sudo; ask for these packages: libone-dev two"]))
        self.assertEqual(self.read("calls"), [])

    def test_sudo_that_wants_a_password(self):
        self.debian(1000, [])
        self.stub("sudo", "exit 1\n")
        self.assertEqual(self.setup_group("build"), (1, [
            "setup: neither root nor able to use sudo; ask for these packages: gcc libone-dev"]))

    def test_apt_fails(self):
        self.debian(0, [])
        self.write("refused", "libone-dev\n")
        status, lines = self.setup_group("build")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1],
                         "setup: apt-get install failed; still missing: gcc libone-dev")

    def test_no_apt(self):
        status, lines = self.setup_group("check")
        self.assertEqual((status, len(lines)), (1, 1))
        self.assertTrue(lines[0].startswith("setup: this system has no apt; install these"))
        for name in ("gcc", "cmake", "ninja-build", "pkg-config", "universal-ctags"):
            self.assertIn(name, lines[0].split())

    def test_no_apt_but_complete(self):
        for tool in "cc make cmake ninja pkg-config python3 ctags".split():
            self.stub(tool, "exit 0\n")
        self.assertEqual(self.setup_group("check"), (0, []))

    def test_usage(self):
        self.assertEqual(self.setup_group("later"),
                         (2, ["usage: tools/setup.sh build|check|ci"]))


if __name__ == "__main__":
    unittest.main()
