"""A memory limit for a program that is measured: a cgroup of version 1 or 2 of its own."""
import os
import time


def mounts(kind):
    """(mount point, options) of every mounted file system of a kind"""
    with open("/proc/mounts", encoding="utf-8") as f:
        fields = [line.split() for line in f]
    return [(m[1], m[3].split(",")) for m in fields if m[2] == kind]


def own_group(controller):
    """Path of this process below the mount point; controller "" is version 2."""
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(",") and (controller or not names):
                return path
    return "/"


def write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


class MemoryLimit:
    """A cgroup of its own with a limit; None as limit does nothing."""

    def __init__(self, limit_bytes):
        self.folder = None
        self.peak_name = ""
        if limit_bytes is None:
            return
        reasons = []
        for make in (self._version_1, self._version_2):
            try:
                if make(limit_bytes):
                    return
            except OSError as e:
                reasons.append(str(e))
                self.close()
        raise OSError("no memory limit can be set here: " + ("; ".join(reasons) or "no cgroup"))

    def _create(self, parents):
        error = None
        for parent in parents:
            folder = os.path.join(parent, f"regolith-bench-{os.getpid()}")
            try:
                os.mkdir(folder)
                self.folder = folder
                return
            except OSError as e:
                error = e
        raise error

    def _version_1(self, limit_bytes):
        for root, options in mounts("cgroup"):
            if "memory" not in options:
                continue
            self._create([root.rstrip("/") + own_group("memory"), root])
            write(os.path.join(self.folder, "memory.limit_in_bytes"), str(limit_bytes))
            self.peak_name = "memory.max_usage_in_bytes"
            return True
        return False

    def _version_2(self, limit_bytes):
        for root, _ in mounts("cgroup2"):
            with open(os.path.join(root, "cgroup.controllers"), encoding="ascii") as f:
                if "memory" not in f.read().split():
                    continue
            self._create([root.rstrip("/") + own_group(""), root])
            parent = os.path.dirname(self.folder)
            if not os.path.exists(os.path.join(self.folder, "memory.max")):
                write(os.path.join(parent, "cgroup.subtree_control"), "+memory")
            write(os.path.join(self.folder, "memory.max"), str(limit_bytes))
            self.peak_name = "memory.peak"
            return True
        return False

    def enter(self):
        """In the child, before it becomes the program."""
        if self.folder:
            write(os.path.join(self.folder, "cgroup.procs"), str(os.getpid()))

    def peak_bytes(self):
        if not self.folder:
            return None
        try:
            with open(os.path.join(self.folder, self.peak_name), encoding="ascii") as f:
                return int(f.read())
        except (OSError, ValueError):
            return None

    def close(self):
        if not self.folder:
            return
        for _ in range(50):  # a group stays busy for a moment after its last process
            try:
                os.rmdir(self.folder)
                break
            except OSError:
                time.sleep(0.1)
        self.folder = None


# ---- runs ---------------------------------------------------------------------------------------
