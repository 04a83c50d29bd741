"""Faults drawn at random from the product's C++ sources, for tests/tools/mutants --random. Each
changes one line: a statement or a condition goes, a condition is negated, an operator, a constant
or the order of two arguments is another. Comments, texts and what only makes a message are left
out, assertions of what always holds too, and the room that a container reserves."""
import collections
import hashlib
import pathlib
import re
from typing import NamedTuple

AREAS = ("comm", "cpu_adam", "nvme_swap", "offload", "runtime", "tools/cli")
DEPTH = {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}
FILL = "\x01"  # in place of what holds no code
TEXTS = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|"""
                   r"""(?<!\w)'(?:\\.|[^'\\\n])+'""", re.S)
MESSAGES = re.compile(r"\b(?:fmt::format|fmt::print|log_warning|log_info|log_error|refuse|Error|"
                      r"SPILLWAY_ASSERT|static_assert|\w+\.reserve)\(")
NOT_CODE = re.compile(r"\s*(?:#|using |namespace |template |friend |extern |static_assert|"
                      r".*\bvirtual )")
OPERAND = r"\*?[\w:]+(?:(?:\.|->|::)\w+|\[[^\]]*\]|\([^()]*\)|<[\w:, ]+>)*"
STATEMENT = re.compile(rf"(?:{OPERAND}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|{OPERAND}\(|\+\+|--|"
                       r"(?:return|break|continue);|throw\b)")
KEYWORDS = re.compile(r"(?:return|if|while|for|switch|case|default|else|do|throw|catch|decltype)\b|"
                      r"[A-Z]\w*\(")
DECLARED = re.compile(r"(?:const )?[\w:<>&*, ]+[ &*]\w+(?: = .*)?$|.*[&*]$|const ")
INTEGER = re.compile(r"(?<![\w.'])(\d[\d']*)(u|_[A-Za-z]\w*)?(?![\w.'])")
REAL = re.compile(r"(?<![\w.'])(\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?=F?\b)")
OF_ANY_ORDER = re.compile(r"\bstd::m(?:ax|in)(?:<[\w:]+>)?$")
OTHERS = {"operator": ((" == ", " != "), (" < ", " <= "), (" < ", " >= "), (" > ", " >= "),
                       (" > ", " <= "), (" <= ", " < "), (" >= ", " > "), (" != ", " == "),
                       (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "),
                       (" * ", " / "), (" / ", " * "), (" % ", " / "), (" += ", " -= "),
                       (" -= ", " += "), (" & ", " | "), (" | ", " & "), ("++", "--"),
                       ("--", "++"), ("min(", "max("), ("max(", "min(")),
          "constant": (("true", "false"), ("false", "true"))}


class Fault(NamedTuple):
    file: str
    line: int  # from 0
    kind: str
    old: str   # the whole line
    new: str

    def text(self, root):
        """The file with the fault in it."""
        lines = (pathlib.Path(root) / self.file).read_text().split("\n")
        assert lines[self.line] == self.old
        lines[self.line] = self.new
        return "\n".join(lines)

    def place(self):
        """The file and the change, wherever in the file it is."""
        return self.file, self.old.strip(), self.new.strip()

    def difference(self):
        return f"--- {self.file}:{self.line + 1}  {self.kind}\n-{self.old}\n+{self.new}"


def blank(text):
    return re.sub(r"[^\n]", FILL, text)


def end_of(code, start):
    """The index of the bracket that closes the one at `start`; none: it is not there."""
    depth = 0
    for index in range(start, len(code)):
        depth += DEPTH.get(code[index], 0)
        if depth == 0:
            return index
    return None


def code_of(text):
    """The text with FILL in place of comments, literals of text, and arguments of messages."""
    code = TEXTS.sub(lambda found: blank(found[0]), text)
    for call in MESSAGES.finditer(code):
        # One within another is filled already.
        end = end_of(code, call.end() - 1) if code[call.end() - 1] == "(" else None
        if end is not None:
            code = code[:call.end()] + blank(code[call.end():end]) + code[end:]
    return code


def parts(code, start, end):
    """Where the parts between commas begin and end."""
    depth, begin, found = 0, start, []
    for index in range(start, end):
        depth += DEPTH.get(code[index], 0)
        if code[index] == "," and depth == 0:
            found.append((begin, index))
            begin = index + 2
    return found + [(begin, end)]


def swapped_arguments(code):
    for opening in re.finditer(r"(?<=[\w>])[({](?! )", code):
        end = end_of(code, opening.start())
        if end is None or OF_ANY_ORDER.search(code[:opening.start()]):
            continue
        spans = parts(code, opening.end(), end)
        texts = [code[begin:stop] for begin, stop in spans]
        if any(DECLARED.match(t) or FILL in t or t.startswith(".") for t in texts):
            continue
        for (first, second), (a, b) in zip(zip(texts, texts[1:]), zip(spans, spans[1:])):
            if first != second and first and second and "<" not in first:
                yield "arguments", a[0], b[1], f"{second}, {first}"


def conditions(code):
    for word in re.finditer(r"\b(if|while|if constexpr|check) ?\(", code):
        end = end_of(code, word.end() - 1)
        begin = word.end()
        if word[1] == "check":
            stop = code.find(",", begin) if end is None else parts(code, begin, end)[0][1]
            if stop > 0 and code[begin:stop].count("(") == code[begin:stop].count(")"):
                yield "condition", begin, stop, "true"
        elif end is not None and not re.search(r";|[^=!<>]=[^=]", code[begin:end]):
            yield "condition", begin, end, f"!({code[begin:end]})"
            yield "condition", begin, end, "true"
            yield "condition", begin, end, "false"
    for negation in re.finditer(r"!(?=[\w(])", code):
        yield "condition", negation.start(), negation.end(), ""


def constants(code):
    for number in INTEGER.finditer(code):
        value = int(number[1].replace("'", ""))
        for other in {value + 1, abs(value - 1)}:
            yield "constant", *number.span(1), str(other)
    for number in REAL.finditer(code):
        yield "constant", *number.span(), str(2 * float(number[1]) or 1.0)


def stands_alone(code, before):
    """Whether a line is a whole statement, by its end and by the line of code before it."""
    stripped = code.strip()
    begins = not before or before[-1] in ";{}:)" or before.endswith("else")
    return begins and stripped.endswith(";") and stripped.count("(") == stripped.count(")")


def changes(code, before):
    """Kind, begin, end and text in its place of each change to a line; `before` is the line of code
    before it."""
    stripped = code.strip()
    if not stripped.strip(FILL) or NOT_CODE.match(code) or "operator" in code:
        return
    simple = re.match(r"(?:return|break|continue);|throw\b", stripped)
    if stands_alone(code, before) and STATEMENT.match(stripped) and "reserve(" not in code and (
            simple or not KEYWORDS.match(stripped)):
        start = len(code) - len(code.lstrip())
        yield "statement", start, start + len(stripped), ";"
    yield from conditions(code)
    for kind, pairs in OTHERS.items():
        for old, new in pairs:
            pattern = rf"\b{old}\b" if old.isalpha() else re.escape(old)
            for found in re.finditer(pattern, code):
                yield kind, *found.span(), new
    yield from constants(code)
    yield from swapped_arguments(code)


def faults_of(file, text):
    """By line, each fault that a file may have."""
    lines, code = text.split("\n"), code_of(text).split("\n")
    before = ""
    for index, line in enumerate(code):
        found = {}
        for kind, begin, end, new in changes(line, before):
            # What is filled keeps its text.
            changed = lines[index][:begin] + new + lines[index][end:]
            if FILL not in new and changed != lines[index]:
                found.setdefault(changed, Fault(file, index, kind, lines[index], changed))
        if found:
            yield list(found.values())
        before = line.replace(FILL, "").strip() or before


def sources(root, areas=AREAS):
    for area in areas:
        for path in sorted((pathlib.Path(root) / area).rglob("*")):
            if path.suffix in (".cpp", ".hpp"):
                yield path.relative_to(root).as_posix()


def drawn(root, areas, seed):
    """Faults of lines drawn without repetition, every line with the same chance. The draw of a
    line follows from its text and the seed, so that another line's change leaves it as it is."""
    lines = []
    for file in sorted(set(sources(root, areas))):
        times = collections.Counter()
        for faults in faults_of(file, (pathlib.Path(root) / file).read_text()):
            text = faults[0].old.strip()
            times[text] += 1
            name = f"{seed} {file} {times[text]} {text}"
            lines.append((int(hashlib.sha256(name.encode()).hexdigest(), 16), faults))
    for chance, faults in sorted(lines):
        yield faults[chance % len(faults)]


def found_again(root, survivors):
    """The faults of an earlier report that were not caught, where their lines are now."""
    for fault in survivors:
        path = pathlib.Path(root) / fault["file"]
        lines = path.read_text().split("\n") if path.exists() else []
        places = [index for index, line in enumerate(lines) if line == fault["old"]]
        if places:
            nearest = min(places, key=lambda index: abs(index + 1 - fault["line"]))
            yield Fault(fault["file"], nearest, fault["kind"], fault["old"], fault["new"])
        else:
            print(f"gone: {fault['file']}: {fault['old'].strip()}", flush=True)
