"""What a report of GoogleTest says. It may hold any bytes that a case printed."""
import pathlib
import re
import xml.etree.ElementTree as ElementTree

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read(path: pathlib.Path) -> ElementTree.Element:
    return ElementTree.fromstring(NOT_XML.sub("?", path.read_bytes().decode("utf-8", "replace")))


def outcomes(report: ElementTree.Element) -> list[tuple[str, str, str]]:
    """Each case that ran, how it ended (passed, skipped or failed), and why it was skipped."""
    found = []
    for case in report.iter("testcase"):
        if case.get("status") != "run":
            continue
        skip, end, why = case.find("skipped"), "passed", ""
        if case.find("failure") is not None:
            end = "failed"
        elif skip is not None or case.get("result") == "skipped":
            end, why = "skipped", "" if skip is None else (skip.get("message") or "") + (
                skip.text or "")
        found.append((f"{case.get('classname')}.{case.get('name')}", end, why))
    return found
