#!/usr/bin/env python3
"""libspillway.so exports what spillway.map lists, and that is what spillway.h declares.

usage: exports_test.py LIBRARY HEADER MAP
"""
import pathlib
import re
import subprocess
import sys


def exported(library: str) -> set[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True,
                             capture_output=True, text=True).stdout
    symbols = {line.split()[-1] for line in listing.splitlines()}
    versions = {"SPILLWAY_1", "SPILLWAY_1.1"}
    assert versions <= symbols, f"{library} lacks a version: {versions - symbols}"
    return symbols - versions


def main() -> None:
    library, header, script = sys.argv[1:]
    declared = set(re.findall(r"^SPILLWAY_API [^(]*?(\w+)\(", pathlib.Path(header).read_text(),
                              re.MULTILINE))
    wanted = {f"{name}@@{version}"
              for version, block in re.findall(r"^(SPILLWAY_[\d.]+) {(.*?)^}",
                                               pathlib.Path(script).read_text(), re.M | re.S)
              for name in re.findall(r"^ +(\w+);$", block, re.MULTILINE)}
    listed = {name.partition("@")[0] for name in wanted}
    assert sum(name.endswith("@SPILLWAY_1") for name in wanted) == 31, "the first version is fixed"
    assert len(declared) >= 30, f"only {len(declared)} functions were found in {header}"
    assert declared == listed, f"declared or listed, not both: {declared ^ listed}"
    found = exported(library)
    assert found == wanted, f"exported or listed, not both: {found ^ wanted}"
    print(f"{len(listed)} functions")


main()
