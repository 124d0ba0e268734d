#!/usr/bin/python3
"""Adds up test results: tools/tally.py [--plain] FILE.xml...

Each file is ctest's JUnit output. Prints the names of the tests that failed or were skipped, then
one last line `N passed, N failed` (with `, N skipped` when some were and --plain is not given).
Exit status 1 when a test failed, a file is missing or unreadable, or nothing passed.

tools/tally.py --record FILE.xml NAME pass|fail adds one result to a file of the same form, for
steps that are not ctest's.
"""
import os
import sys
import xml.etree.ElementTree as ET

# What ctest writes for a test that asked to be skipped; other tests that did not run have failed.
SKIP_REASONS = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION")


def case_state(case):
    if case.get("status") == "run":
        return "passed"
    skipped = case.find("skipped")
    if skipped is not None and skipped.get("message", "").startswith(SKIP_REASONS):
        return "skipped"
    return "failed"


def record(path, name, outcome):
    root = ET.parse(path).getroot() if os.path.exists(path) else ET.Element("testsuite")
    case = ET.SubElement(root, "testcase", name=name)
    case.set("status", "run" if outcome == "pass" else "fail")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    ET.ElementTree(root).write(path)


def main(args):
    if args[:1] == ["--record"]:
        record(*args[1:])
        return 0
    plain = "--plain" in args
    states = {"passed": [], "failed": [], "skipped": []}
    for path in args:
        if path == "--plain":
            continue
        suite = os.path.splitext(os.path.basename(path))[0]
        try:
            cases = ET.parse(path).getroot().findall("testcase")
        except (OSError, ET.ParseError) as error:
            print(f"{path}: {error}")
            states["failed"].append(f"{suite}: no results")
            continue
        for case in cases:
            states[case_state(case)].append(f"{suite}: {case.get('name')}")
    for state in ("skipped", "failed"):
        for name in states[state]:
            print(f"{state}: {name}")
    line = f"{len(states['passed'])} passed, {len(states['failed'])} failed"
    if states["skipped"] and not plain:
        line += f", {len(states['skipped'])} skipped"
    print(line)
    return 0 if states["passed"] and not states["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
