"""Where same_bits trains its runs, what it keeps of them, and how two outcomes are compared."""
import collections
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import tempfile

from program_folder import ProgramFolder

TIERS = ("device", "host", "nvme")
ISA = re.compile(r"sse|avx|fma|f16c|amx|vnni|asimd|sve|bf16|fp16")
PREDICTION_TOLERANCE = 1.005


class Failure(Exception):
    pass


def machine():
    """What decides the bits besides the program: processor, instruction sets, C library."""
    found = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    flags = (found.get("flags") or found.get("Features") or "").split()
    return {"cpu": found.get("model name") or found.get("CPU part") or platform.processor(),
            "isa": " ".join(sorted(flag for flag in flags if ISA.search(flag))),
            "libc": " ".join(platform.libc_ver())}


class InputFiles:
    """The data and the machine's description, which a record keeps."""

    def __init__(self, root):
        self.data, self.machine = root / "data", root / "machine.json"

    @classmethod
    def create(cls, root, machine_file):
        inputs, rng = cls(root), random.Random(1)
        inputs.data.mkdir(parents=True, exist_ok=True)
        shutil.copy(machine_file, inputs.machine)
        train = [i * 7 % 61 if rng.random() < 0.8 else rng.randrange(256) for i in range(6000)]
        for name, values in (("train", train), ("val", [i * 7 % 61 for i in range(100)])):
            (inputs.data / f"{name}.bin").write_bytes(
                b"".join(value.to_bytes(2, "little") for value in values))
        (inputs.data / "meta.json").write_text(
            json.dumps({"dtype": "uint16", "vocab_size": 256, "tokenizer": "bytes"}))
        return inputs


def exact(text):
    """JSON whose numbers stay the text that they are."""
    return json.loads(text, parse_float=str)


class Bench(ProgramFolder):
    """The directory of one run."""

    def __init__(self, root, run, inputs):
        self.folder, self.inputs, self.work, self.parts = root, inputs, run, []
        self.environment = os.environ | {"XDG_CACHE_HOME": str(root / "cache")}
        self.write("model.json", run["model"])

    def answer(self, *arguments):
        return self.succeed(*arguments).stdout

    def train_part(self, part, target, fresh):
        section = self.work["config"]["spillway"] | part.get("section", {})
        self.write("train.json", self.work["config"] | {"spillway": section})
        flags = list(part.get("flags", self.work["flags"]))
        for flag, value in zip(flags, flags[1:]):
            if flag == "--nvme":
                self.path(value).mkdir(exist_ok=True)
        if part.get("start") == "weights":
            self.answer("export", "run", "weights")
        origin = ["--from", part["start"]] if "start" in part else ["--model", "model.json"]
        arguments = ["train", "train.json", *(origin if fresh else ()), "--data", self.inputs.data,
                     "--run", target, "--steps", part["steps"], "--json", *flags,
                     *(() if fresh else ("--resume",))]
        if "kill" in part:
            process = self.start(*arguments)
            try:
                self.wait_for_steps(process, target, part["kill"])
            finally:
                process.kill()
                process.wait()
            return
        report = json.loads(self.answer(*arguments))
        # A process that trained after another was killed moves what that one had not.
        if not any("kill" in each for each in self.work["parts"]):
            self.parts.append(counters(report, json.loads(
                (self.path(target) / "trace.json").read_text())))

    def bits(self, target):
        lines = [exact(line)
                 for line in (self.path(target) / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            del line["seconds"], line["exposed"]
        kept = sorted((self.path(target) / "checkpoints").glob("step-*"))
        monitors = sorted(self.path(target).glob("csv_monitor/**/*.csv"))
        sound = json.loads(self.answer("fsck", target, "--json"))
        return {
            "metrics": lines,
            "weights": {name: self.weights(path) for name, path in
                        [("run", target), *((path.name, path) for path in kept)]},
            "monitors": {path.name: digest(path) for path in monitors},
            "evaluated": exact(self.answer("eval", "--run", target, "--data", self.inputs.data,
                                           "--compute-threads", 2, "--json")),
            "generated": json.loads(self.answer(
                "generate", "--run", target, "--prompt-tokens", "1 8 15", "--temperature", 0,
                "--compute-threads", 2, "--tokens", 8, "--json"))["tokens"],
            "fsck": {key: sound["stores"][0][key] for key in ("committed_step", "slots", "tiles",
                                                             "tiles_checked", "bytes_checked")},
        }


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def counters(report, trace):
    moved = collections.defaultdict(collections.Counter)
    ops = collections.Counter()
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            moved[event["cat"]][event["name"]] += event["args"].get("bytes", 0)
            ops[event["cat"]] += 1
    return {"bytes": {"state": {"read": report["state_bytes_read"],
                                "written": report["state_bytes_written"]}, **moved},
            "ops": ops, "memory": memory_of(report["plan"]),
            "high_water": {tier: report[f"{tier}_high_water"] for tier in ("device", "host")},
            "blocks": report["plan"]["blocks"]}


def memory_of(plan):
    return {tier: {"bytes": plan["memory"][tier]["bytes"],
                   "items": plan["memory"][tier].get("items", {})} for tier in TIERS}


def train(run, inputs, programs, parts):
    """The outcome of the run; the last of the programs does the last part, the first the others."""
    with tempfile.TemporaryDirectory(prefix="spillway-same-bits-") as directory:
        bench = Bench(pathlib.Path(directory), run, inputs)
        target = None
        for number, part in enumerate(parts):
            bench.program = programs[-1] if number == len(parts) - 1 else programs[0]
            fresh = target is None or "start" in part
            target = "run" if target is None else "next" if "start" in part else target
            bench.train_part(part, target, fresh)
        return json.loads(json.dumps({**bench.bits(target), "parts": bench.parts}))


def outcome_of_run(run, inputs, programs):
    return train(run, inputs, programs, run["parts"])


def end_to_end(run, inputs, programs):
    """Differences of the run that one program begins and the other ends."""
    parts, expected = run["parts"], run["outcome"]
    if len(parts) == 1:
        middle = parts[0]["steps"] // 2
        parts = [{**parts[0], "steps": max(middle, 1)}, parts[0]]
        # The first half ends with an evaluation that the whole run may not have.
        expected = {**expected, "metrics": [dict(line) for line in expected["metrics"]]}
    outcome = train(run, inputs, programs, parts)
    if parts is not run["parts"]:
        for lines in (expected["metrics"], outcome["metrics"]):
            lines[parts[0]["steps"] - 1].pop("val_loss", None)
        expected["monitors"] = outcome["monitors"] = {}
    return bit_differences(expected, outcome)


def bit_differences(old, new):
    if len(old["metrics"]) != len(new["metrics"]):
        yield f"{len(old['metrics'])} steps became {len(new['metrics'])}"
    for ours, theirs in zip(old["metrics"], new["metrics"]):
        wrong = sorted(key for key in ours.keys() | theirs.keys()
                       if ours.get(key) != theirs.get(key))
        if wrong:
            yield f"step {ours['step']}: " + ", ".join(
                f"{key} {ours.get(key)} became {theirs.get(key)}" for key in wrong)
            break
    for what in ("weights", "monitors", "evaluated", "generated", "fsck"):
        if old[what] != new[what]:
            yield f"{what}: {old[what]} became {new[what]}"


def byte_differences(old, new):
    for lane in sorted(old.keys() | new.keys()):
        ours, theirs = old.get(lane, {}), new.get(lane, {})
        for kind in sorted(ours.keys() & theirs.keys()):
            if ours[kind] != theirs[kind]:
                yield f"bytes of {lane} {kind}: {ours[kind]} became {theirs[kind]}"
        rest = [sum(bytes for kind, bytes in mine.items() if kind not in other)
                for mine, other in ((ours, theirs), (theirs, ours))]
        if rest[0] != rest[1]:
            yield (f"bytes of {lane}, kinds that one of the programs lacks: {rest[0]} became "
                   f"{rest[1]}")


def memory_differences(old, new):
    for tier in TIERS:
        if new[tier]["bytes"] > old[tier]["bytes"]:
            yield f"{tier} memory grew from {old[tier]['bytes']} to {new[tier]['bytes']}"


def differences(old, new, counted):
    yield from bit_differences(old, new)
    if not counted:
        return
    for number, (ours, theirs) in enumerate(zip(old["parts"], new["parts"], strict=True), 1):
        where = f"process {number}: " if len(old["parts"]) > 1 else ""
        found = [*byte_differences(ours["bytes"], theirs["bytes"]),
                 *memory_differences(ours["memory"], theirs["memory"])]
        for tier, most in theirs["high_water"].items():
            if most > ours["high_water"][tier]:
                found.append(f"most {tier} memory in use grew from {ours['high_water'][tier]} to "
                             f"{most}")
        yield from (where + text for text in found)


def notes(old, new):
    """What may differ, and whoever changed the program wants to know."""
    for ours, theirs in zip(old["parts"], new["parts"]):
        for tier in TIERS:
            if ours["memory"][tier] != theirs["memory"][tier]:
                yield f"{tier} memory: {ours['memory'][tier]} became {theirs['memory'][tier]}"
        if ours["ops"] != theirs["ops"]:
            yield f"ops: {ours['ops']} became {theirs['ops']}"
        if ours["blocks"] != theirs["blocks"]:
            yield f"placement: {shown(ours['blocks'])} became {shown(theirs['blocks'])}"


def shown(blocks):
    return "; ".join(sorted(f"{block['name']} {' '.join(sorted(words(block)))}"
                            for block in blocks))


def words(block):
    """What a block's placement shows, as `covers` names it."""
    yield "resident" if block["resident"] else "streamed"
    yield "kept" if block["keep"] else "recomputed"
    if block["offload"]:
        yield "offloaded"
    yield f"state {block['state']}"
    yield f"boundaries {block['activations']}"
    yield "sums device" if block["sums_on_device"] else "sums host"


def missing(run, outcome):
    """What the run should cover and does not."""
    found = {word for part in outcome["parts"] for block in part["blocks"] for word in words(block)}
    for part in outcome["parts"]:
        for tier in TIERS:
            found.update(f"takes {item}" for item in part["memory"][tier]["items"])
    return (f"nothing of it is '{word}': {shown(outcome['parts'][0]['blocks'])}"
            for word in run["covers"] if word not in found)


def outcome_of_plan(plan, inputs, program):
    with tempfile.TemporaryDirectory(prefix="spillway-same-bits-") as directory:
        bench = Bench(pathlib.Path(directory), {"model": {}}, inputs)
        bench.program = program
        bench.write("train.json", plan["config"])
        document = json.loads(bench.answer("plan", "train.json", "--model", plan["model"],
                                           "--machine", inputs.machine, "--device", "cuda",
                                           "--json", *plan["flags"]))
        return {"memory": memory_of(document), "blocks": document["blocks"],
                "step_seconds": document["step_seconds"]}


def plan_differences(old, new):
    """The differences, and the notes."""
    found = list(memory_differences(old["memory"], new["memory"]))
    seconds = f"predicted step: {old['step_seconds']} s became {new['step_seconds']} s"
    noted = []
    if new["step_seconds"] > old["step_seconds"] * PREDICTION_TOLERANCE:
        found.append(seconds)
    elif new["step_seconds"] != old["step_seconds"]:
        noted.append(seconds)
    if old["blocks"] != new["blocks"]:
        noted.append(f"placement: {shown(old['blocks'])} became {shown(new['blocks'])}")
    return found, noted
