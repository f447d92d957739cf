#!/usr/bin/env python3
"""Counts single tests of the last ctest runs: count_tests.py BUILD_DIR... prints 'N passed, N failed, N skipped'.

ctest counts programs; a program holds many GoogleTest or unittest cases, and a skipped case must be seen. The cases are
read from the programs' own closing lines in ctest's log.
"""
import pathlib
import re
import sys

GTEST = re.compile(r"^\[  (PASSED|SKIPPED|FAILED) *\] (\d+) tests?[,.]?", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*?\n+(OK|FAILED)(?: \((.*?)\))?$", re.M | re.S)


def count(log: str) -> dict[str, int]:
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for kind, number in GTEST.findall(log):
        totals[kind.lower()] += int(number)
    for ran, _, details in UNITTEST.findall(log):
        named = {key: int(value) for key, value in re.findall(r"(failures|errors|skipped)=(\d+)", details or "")}
        bad = named.get("failures", 0) + named.get("errors", 0)
        totals["failed"] += bad
        totals["skipped"] += named.get("skipped", 0)
        totals["passed"] += int(ran) - bad - named.get("skipped", 0)
    return totals


def main() -> None:
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for folder in sys.argv[1:]:
        log = pathlib.Path(folder, "Testing/Temporary/LastTest.log").read_text(errors="replace")
        for key, value in count(log).items():
            totals[key] += value
        # A program that crashed or timed out prints no closing line: ctest's own list of failures has it.
        failed = pathlib.Path(folder, "Testing/Temporary/LastTestsFailed.log")
        if failed.exists() and totals["failed"] == 0:
            totals["failed"] += len(failed.read_text().split())
    print(", ".join(f"{value} {key}" for key, value in totals.items()))


if __name__ == "__main__":
    main()
