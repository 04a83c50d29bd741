"""Plans, runs and exports with every allocation of the library failing, each in a process of its
own: the error is one of the package's, an export is whole or not there, and what follows in that
process has the bits of a run without a fault. A document of JSON needs memory to be freed; where it
gets none the process ends, as if it were killed, and the run goes on in another one."""
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import traceback

import pytest

import spillway

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from program_folder import MODEL, TEXT

NEVER = 1 << 62
SEED = int(os.environ.get("SPILLWAY_TEST_SEED", random.randrange(1 << 31)))
CONFIG = {"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
          "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192, "compute_threads": 1,
                       "save_every": 2, "keep": 1}}


def plan(folder):
    spillway.plan(CONFIG, model=MODEL, run=folder)


def train(folder, steps):
    spillway.train(CONFIG, model=MODEL, data=folder.parent / "data", run=folder / "run",
                   nvme=folder / "disk", steps=steps, resume=True, progress=False)


def begin(folder):
    train(folder, 3)


def go_on(folder):
    train(folder, 5)


def export(folder):
    spillway.export(folder / "run", folder / "out")


CALLS = (plan, begin, go_on, export)


def finish(folder, first):
    """Makes the rest of the calls; returns what they have made. A plan leaves nothing to go on."""
    if first is plan:
        return plan(folder)
    for call in CALLS[CALLS.index(first):]:
        if call is not export or not (folder / "out").exists():
            call(folder)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], (folder / "out/model.safetensors").read_bytes().hex()


def forked(function, *arguments):
    """Returns what a function returns in a process of its own; None if it has ended that."""
    source, target = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            text = json.dumps(function(*arguments))
            with os.fdopen(target, "w") as out:
                out.write(text)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as told:
        text = told.read()
    _, status = os.waitpid(process, 0)
    assert status in (0, signal.SIGABRT), (function.__name__, arguments, status)
    return json.loads(text) if status == 0 else None


def attempt(call, folder, successes):
    """Lets one allocation fail, and goes on. Returns how many there were, the error, and what has
    come of all calls."""
    calls = ctypes.CDLL(None)  # with LD_PRELOAD=libspillway_failing_calls.so, as CTest sets it
    calls.spillway_test_left.restype = ctypes.c_int64
    calls.spillway_test_fail(False, ctypes.c_int64(successes))
    failure = ""
    calls.spillway_test_watch(False, True)
    try:
        call(folder)
    except (spillway.Error, MemoryError) as error:
        assert isinstance(error, spillway.OutOfMemoryError), repr(error)
        failure = str(error)
    calls.spillway_test_watch(False, False)
    count = successes - calls.spillway_test_left(False)
    if failure:
        assert "memory" in failure and count > successes, (failure, count)
        assert not (folder / "out").exists(), failure
    return count, failure, finish(folder, call)


def run_until(call, folder):
    for earlier in CALLS[:CALLS.index(call)]:
        earlier(folder)


def turns_of(count, most):
    drawn = random.Random(SEED)
    step = 1 if "SPILLWAY_TEST_ALL_CALLS" in os.environ else max(count / most, 1)
    at = drawn.random() * step
    while at < count:
        yield int(at)
        at += step


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what a run does without
@pytest.mark.parametrize("call, most", [(plan, 30), (begin, 6), (go_on, 6), (export, 12)])
def test_allocations(tmp_path, monkeypatch, call, most):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    subprocess.run([os.environ["SPILLWAY_PROGRAM"], "data", tmp_path / "text.txt", "--out",
                    tmp_path / "data", "--tokenizer", "bytes"], check=True)
    folder, start = tmp_path / "folder", tmp_path / "start"
    (folder / "disk").mkdir(parents=True)
    forked(run_until, call, folder)
    shutil.copytree(folder, start)
    count, failure, expected = forked(attempt, call, folder, NEVER)
    assert failure == ""
    failed = ended = 0
    for successes in turns_of(count, most):
        shutil.rmtree(folder)
        shutil.copytree(start, folder)
        told = forked(attempt, call, folder, successes)
        if told is None:
            ended += 1
            told = 0, "", forked(finish, folder, call)
        failed += told[1] != ""
        assert told[2] == expected, (SEED, call.__name__, successes, told[1])
        assert set(os.listdir(folder)) <= {"disk", "out", "run"}, (SEED, successes, told[1])
    print(f"{call.__name__}: {count} allocations, {failed} refused, {ended} ended the process")
    assert failed > most / 2
