"""Tables of pages that tools/machine-table and tools/published write and check."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rounded(rate):
    """Three digits, as the assumptions allow no more."""
    digits = max(len(str(int(rate))) - 3, 0)
    return f"{int(round(rate, -digits)):,}"


def renew(page, tool, made, check):
    """Writes the table between the tool's marks in a page, or returns what is wrong with the one
    that is there."""
    begin = f"<!-- {tool} writes what follows -->\n"
    end = f"<!-- {tool} wrote what precedes -->\n"
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{path} must have each of {begin.strip()} and {end.strip()} once")
    before, rest = text.split(begin)
    written, after = rest.split(end)
    made = f"\n{made}\n"
    if not check:
        path.write_text(before + begin + made + end + after, encoding="utf-8")
    elif made != written:
        old = set(written.splitlines())
        changed = "\n".join(line for line in made.splitlines() if line not in old)
        return (f"{page} has another table than `spillway plan` gives; renew it with {tool}. Lines "
                f"that are new:\n{changed}")
    return None
