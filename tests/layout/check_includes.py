#!/usr/bin/env python3
"""Fails on an include against the dependency direction: check_includes.py SRC ALLOWED [--self-test].

Every `#include "folder/..."` of a file in src/FOLDER must name FOLDER itself or a folder that the table allows it.
"""
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def read_table(path: pathlib.Path) -> dict[str, set[str]]:
    table = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            folder, allowed = line.split(":")
            table[folder.strip()] = set(allowed.split())
    return table


def violations(src: pathlib.Path, table: dict[str, set[str]]) -> list[str]:
    found = []
    for file in sorted(src.rglob("*")):
        if file.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"} or "target" in file.parts:
            continue
        folder = file.relative_to(src).parts[0]
        if folder not in table:
            found.append(f"{file}: folder {folder} has no line in the table of allowed includes")
            continue
        for included in INCLUDE.findall(file.read_text(errors="replace")):
            target = included.split("/")[0]
            if "/" not in included:
                continue  # a generated or same-folder header
            if target in table and target != folder and target not in table[folder]:
                found.append(f"{file}: includes {included}, but {folder} may only use {sorted(table[folder])}")
            elif target not in table and (src / included).exists():
                found.append(f"{file}: includes {included} of an unlisted folder")
    return found


def self_test() -> None:
    """The checker itself: a wrong arrow in a scratch tree must be found, a right one must not."""
    with tempfile.TemporaryDirectory() as scratch:
        src = pathlib.Path(scratch)
        (src / "base").mkdir()
        (src / "link").mkdir()
        (src / "base/a.h").write_text('#include "link/b.h"\n')
        (src / "link/b.h").write_text('#include "base/a.h"\n#include <vector>\n')
        found = violations(src, {"base": set(), "link": {"base"}})
        assert len(found) == 1 and "base/a.h" in found[0], found


def main() -> int:
    self_test()
    found = violations(pathlib.Path(sys.argv[1]), read_table(pathlib.Path(sys.argv[2])))
    print("\n".join(found))
    print(f"Ran 1 test in 0s\n\n{'FAILED (failures=1)' if found else 'OK'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
