#!/usr/bin/python3
"""Checks the rules of the house that a compiler does not: tools/tidy.py [--root DIR] [--build DIR]

Reads every file of the tree and prints one line per violation, `file:line: [rule] what`. Exit
status 1 when there is one. --build names a build folder whose room libraries are asked for their
symbols. Needs universal-ctags (function lengths), nm and cc. tests/tidy_test.py breaks each rule.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from collections import defaultdict

LINE_COLUMNS_MAX = 100
FILE_LINES_MAX = 1200
FUNCTION_LINES_MAX = 70
LONG_FUNCTION_LINES_MAX = 150

# A room may include its own headers, the public header where named, and the door header
# `room/room.h` of the rooms named. base includes the public header for the status type.
ROOMS = {
    "base": {"include"},
    "quant": {"base"},
    "stream": {"base"},
    "model": {"base", "quant"},
    "kernels": {"base", "quant"},
    "engine": {"base", "quant", "model", "kernels", "stream"},
    "text": {"base", "model"},
    "store": {"include", "base"},
    "api": {"include", "base", "quant", "stream", "model", "kernels", "engine", "text"},
    "forge": {"include", "base", "quant", "model", "text", "kernels", "stream", "engine"},
    "serve": {"include", "base", "store"},
    "cli": {"include", "forge", "serve"},
}

SKIPPED_FOLDERS = {".git", ".cache", "build", "__pycache__", "node_modules", "dist"}
# Data, not text of ours: any bytes are allowed in it.
DATA_FOLDERS = ("tests/data/", "tests/fuzz/corpus/", "tests/golden/", "models/")
TEXT_SUFFIXES = (".c", ".h", ".py", ".sh", ".cmake", ".comp", ".glsl", ".txt", ".md", ".json",
                 ".tsv", ".html", ".js", ".css", ".yml", ".1")
TEXT_NAMES = ("Makefile", "run", "LICENSE", ".clang-format", ".clang-tidy", ".gitignore")
CODE_SUFFIXES = (".c", ".h", ".py", ".sh", ".cmake", ".comp", ".glsl")
SHARED_NAMES = {"CMakeLists.txt", "README.md", "room.cmake", ".gitignore", ".clang-tidy", ".npmrc",
                "package.json", "package-lock.json"}

ALLOCATORS = ("malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf getline "
              "posix_memalign aligned_alloc").split()
# rule, pattern over code without comments and strings, files where it is allowed
CALL = r"(?<![\w.>])(?:%s)\s*\("
BANNED = [
    ("alloc", CALL % "|".join(ALLOCATORS), lambda f: f.is_test or f.path == "src/base/alloc.c",
     "allocates outside base/alloc.c"),
    ("exit", CALL % "exit|_exit|_Exit|quick_exit|abort",
     lambda f: f.is_test or f.room == "cli" or f.path == "src/base/status.c",
     "ends the process outside cli/"),
    ("print", CALL % "printf|vprintf|puts|putchar" + r"|\bstdout\b",
     lambda f: f.is_test or f.room == "cli", "prints to standard output outside cli/"),
    ("print", r"\bstderr\b|" + CALL % "perror",
     lambda f: f.is_test or f.room in ("cli", "forge") or f.path == "src/base/status.c",
     "prints from a library room"),
    ("unsafe", CALL % ("strcpy|stpcpy|strcat|strncpy|strncat|sprintf|vsprintf|gets|atoi|atol|atoll"
                       "|atof|strtok|rand|srand|alloca|tmpnam|mktemp"), lambda f: False,
     "is banned everywhere"),
    ("assert", CALL % "assert" + r"|#\s*include\s*<assert\.h>", lambda f: f.is_test,
     "use RG_ASSERT"),
    ("getenv", CALL % "getenv|secure_getenv", lambda f: f.is_test or f.room == "cli",
     "reads the environment outside cli/"),
    ("volatile", r"(?<!__asm__ )\bvolatile\b(?! *\()", lambda f: f.is_test, "use stdatomic.h"),
]
# Spelled in pieces, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}~*/-])/(?:home|work|root|tmp)/")


class Source:
    """One file: its text, and for C the same text with comments and strings blanked."""

    def __init__(self, root, path):
        self.path = path
        self.name = os.path.basename(path)
        parts = path.split("/")
        self.room = parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]
        self.is_c = path.endswith((".c", ".h"))
        # The rules for product code do not bind tests, timing and tools.
        self.is_test = (self.name.endswith(("_test.c", "_fuzz.c"))
                        or parts[0] in ("tests", "tools", "bench"))
        self.is_data = path.startswith(DATA_FOLDERS)
        self.is_text = not self.is_data and (path.endswith(TEXT_SUFFIXES)
                                             or self.name in TEXT_NAMES)
        self.full = os.path.join(root, path)
        self.text = ""
        if self.is_text:
            with open(self.full, encoding="utf-8", errors="replace") as f:
                self.text = f.read()
        self.lines = self.text.split("\n")
        self.code = blank_comments(self.text) if self.is_c else ""
        self.generated = any("enerated by" in line for line in self.lines[:6])


TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def blank_comments(text):
    """Comments and string contents become spaces; include lines and line numbers stay."""

    def blank(match):
        token = match.group(0)
        start = text.rfind("\n", 0, match.start()) + 1
        if token[0] == '"' and re.match(r"\s*#\s*include\b", text[start:match.start()]):
            return token
        return re.sub(r"[^\n]", " ", token)

    return TOKEN.sub(blank, text)


def read_tree(root):
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(d for d in folders if d not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name != ".git" and not os.path.islink(os.path.join(root, path)):
                sources.append(Source(root, path))
    return sources


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_layout(source, report):
    is_code = source.path.endswith(CODE_SUFFIXES) or source.name in ("CMakeLists.txt", "run")
    for number, line in enumerate(source.lines, 1):
        if is_code and len(line) > LINE_COLUMNS_MAX:
            report(number, "columns", f"{len(line)} columns, {LINE_COLUMNS_MAX} are allowed")
        if "\t" in line and source.name != "Makefile" and not source.path.endswith(".tsv"):
            report(number, "tab", "use spaces")
        if line != line.rstrip() and not source.path.endswith(".tsv"):
            report(number, "trailing", "white space at the end of the line")
        if UNFINISHED.search(line):
            report(number, "unfinished", "finish it, or file an issue")
        if MACHINE_PATH.search(line) and not source.is_test:
            report(number, "path", "a path of one machine")
    if source.text and not source.text.endswith("\n"):
        report(len(source.lines), "trailing", "no newline at the end of the file")
    n_lines = len(source.lines) - 1
    if is_code and n_lines > FILE_LINES_MAX and not source.generated:
        report(n_lines, "file-length", f"{n_lines} lines, {FILE_LINES_MAX} are allowed")


INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*\"([^\"\n]+)\"", re.MULTILINE)


def include_error(source, target):
    """Why `source` may not include "target"; None when it may."""
    allowed = ROOMS.get(source.room)
    if allowed is None:
        return f"unknown room {source.room}"
    if target == "regolith.h":
        return None if "include" in allowed else "the public header is not for this room"
    parts = target.split("/")
    if len(parts) == 1:
        return "name the room: room/file.h"
    if parts[0] == source.room:
        return None
    if source.is_test and parts[0] == "support":
        return None
    if parts[0] not in ROOMS:
        return f"{parts[0]} is not a room"
    if parts[0] not in allowed:
        return f"{source.room} may include {', '.join(sorted(allowed))}"
    if parts[1:] != [f"{parts[0]}.h"]:
        return f"the door of {parts[0]} is {parts[0]}/{parts[0]}.h"
    return None


def check_includes(source, report):
    if not source.path.startswith(("src/", "cli/")):
        return
    for match in INCLUDE.finditer(source.code):
        error = include_error(source, match.group(1))
        if error:
            report(line_of(source.code, match.start()), "include", f"{match.group(1)}: {error}")


def check_banned(source, report):
    if not source.path.startswith(("src/", "cli/", "include/", "tests/", "bench/", "tools/")):
        return
    for rule, pattern, allowed, why in BANNED:
        if allowed(source):
            continue
        for match in re.finditer(pattern, source.code):
            word = match.group(0).rstrip("( \t")
            report(line_of(source.code, match.start()), rule, f"{word}: {why}")


# With no comment behind it: in shaders barrier(), in C those of command lists.
BARRIER = re.compile(r"\b(barrier|sync|rg_gpu_barrier)\([^;]*\);$")


def check_barriers(source, report):
    """Whoever waits says for what."""
    is_shader = source.path.startswith("src/kernels/gpu/shaders/")
    if not is_shader and not (source.path.startswith("src/") and source.name.startswith("gpu_")
                              and source.is_c and not source.is_test):
        return
    for number, line in enumerate(source.lines, 1):
        if BARRIER.search(line):
            report(number, "barrier", "say in a comment what it waits for")


def functions_of(sources):
    """(source, name, first line, last line) of every C function, by universal-ctags."""
    by_path = {s.full: s for s in sources if s.is_c and s.is_text}
    if not by_path:
        return []
    command = ["ctags", "--output-format=json", "--kinds-C=f", "--languages=C", "--fields=+ne",
               "--langmap=C:.c.h", "-L", "-", "-f", "-"]
    run = subprocess.run(command, input="\n".join(by_path), capture_output=True, text=True,
                         check=True)
    found = []
    for line in run.stdout.splitlines():
        tag = json.loads(line)
        if "end" in tag:
            found.append((by_path[tag["path"]], tag["name"], tag["line"], tag["end"]))
    return found


def comment_above(source, line):
    """The comment that ends just above a function whose name stands on `line`."""
    i = line - 2
    # Return type and attributes may stand on lines of their own.
    while i >= 0 and source.code.split("\n")[i].strip() and line - 2 - i < 3:
        i -= 1
    if i < 0 or not source.lines[i].rstrip().endswith("*/"):
        return ""
    end = i
    while i > 0 and "/*" not in source.lines[i]:
        i -= 1
    return "\n".join(source.lines[i:end + 1])


def check_functions(sources, report):
    for source, name, first, last in functions_of(sources):
        n_lines = last - first + 1
        limit = FUNCTION_LINES_MAX
        if n_lines > limit:
            if re.search(r"\b(?:long|flat)\b", comment_above(source, first), re.IGNORECASE):
                limit = LONG_FUNCTION_LINES_MAX
        if n_lines > limit:
            report(source, first, "function-length",
                   f"{name}: {n_lines} lines, {limit} are allowed")


def check_names(sources, report):
    by_name = defaultdict(list)
    for source in sources:
        if not source.is_data and source.name not in SHARED_NAMES:
            by_name[source.name].append(source)
    for name, same in by_name.items():
        for source in same[1:]:
            report(source, 1, "file-name", f"{name} exists also as {same[0].path}")


def check_headers_alone(root, sources, report):
    """Each header compiles by itself. Those of another architecture's kernels are left out."""
    machine = os.uname().machine
    foreign = "/arm/" if machine == "x86_64" else "/x86/"
    headers = [s for s in sources if s.path.endswith(".h") and s.is_text
               and s.path.startswith(("src/", "include/", "cli/")) and foreign not in s.path]

    def compile_alone(source):
        command = [os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only",
                   "-Wall", "-Wno-unused-function", "-Werror", "-Iinclude", "-Isrc", "-I.",
                   "-DRG_SOURCE_DIR=\"\"", "-DRG_TEST_DATA=\"\"", "-include", source.path,
                   "-x", "c", "/dev/null"]
        if "/x86/" in source.path:
            level = ["-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi", "-mavx512bitalg"]
            command[1:1] = level if "/x86/v4" in source.path else ["-march=x86-64-v3"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, run in zip(headers, pool.map(compile_alone, headers)):
            if run.returncode != 0:
                errors = [l for l in run.stderr.splitlines() if "error:" in l] or ["cc failed"]
                report(source, 1, "header", f"does not compile alone: {errors[0]}")


def check_symbols(build, report):
    for room in ROOMS:
        library = os.path.join(build, f"librg_{room}.a")
        if not os.path.exists(library):
            continue
        run = subprocess.run(["nm", "-g", "--defined-only", library], capture_output=True,
                             text=True, check=True)
        for symbol in re.findall(r"^[0-9a-f]+ [A-Z] (\S+)$", run.stdout, re.MULTILINE):
            if not symbol.startswith("rg_"):
                report(f"src/{room}", "symbol", f"{symbol}: every shared name starts with rg_")


def check_tree(root, build):
    violations = []
    sources = read_tree(root)

    def at(source, line, rule, what):
        violations.append(f"{source.path}:{line}: [{rule}] {what}")

    for source in sources:
        if not source.is_text:
            continue

        def here(line, rule, what, source=source):
            at(source, line, rule, what)

        check_layout(source, here)
        check_barriers(source, here)
        if source.is_c:
            check_includes(source, here)
            check_banned(source, here)
    check_functions(sources, at)
    check_names(sources, at)
    check_headers_alone(root, sources, at)
    if build:
        check_symbols(build, lambda where, rule, what: violations.append(
            f"{where}: [{rule}] {what}"))
    return violations, len(sources)


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of the house.")
    default_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--root", default=default_root)
    parser.add_argument("--build", default="")
    args = parser.parse_args()
    violations, n_files = check_tree(os.path.abspath(args.root), args.build)
    for line in violations:
        print(line)
    print(f"tidy: {n_files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
