"""The native engine from Python, beside the program: the same plans, the same bits, errors that
carry what the program says, and runs that end after a step and go on."""
import html
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

import pytest

import spillway

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/tools"))
from program_folder import MODEL, TEXT

PROGRAM = os.environ["SPILLWAY_PROGRAM"]
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192, "compute_threads": 1}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    run_program("data", text, "--out", tmp_path / "data", "--tokenizer", "bytes")
    return tmp_path / "data"


def run_program(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], check=False, encoding="utf-8",
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(data, run, **more):
    return spillway.train(CONFIG, model=MODEL, data=data, run=run, progress=False, **more)


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run):
    return [line["loss"] for line in metrics(run) if "loss" in line]


@pytest.mark.parametrize("started", [
    {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
     "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
     "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}])
def test_a_rank_of_a_launcher_does_not_train_for_itself(data, tmp_path, monkeypatch, started):
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(spillway.NotSupportedError, match="say that there are 2 ranks"):
        train(data, tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_plan_is_that_of_the_program(tmp_path):
    machine = ROOT / "docs/machines/h100.json"
    config = tmp_path / "train.json"
    config.write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "spillway"}
                                 | {"bf16": {"enabled": True}}))
    plan = spillway.plan(config, model="llama-2-7b", machine=machine, device_memory="24GiB")
    said = json.loads(run_program("plan", config, "--model", "llama-2-7b", "--machine", machine,
                                  "--device-memory", "24GiB", "--json"))
    assert plan.document == {key: said[key] for key in plan.document}
    text = run_program("plan", "-v", config, "--model", "llama-2-7b", "--machine", machine,
                       "--device-memory", "24GiB")
    assert text.startswith(repr(plan))
    assert plan.tokens_per_second == pytest.approx(plan.speed["tokens_per_second"])
    run_program("plan", config, "--model", "llama-2-7b", "--machine", machine,
                "--device-memory", "24GiB", "--html", tmp_path / "plan.html")
    assert plan.html() == (tmp_path / "plan.html").read_text()
    assert html.escape(plan.html()) in plan._repr_html_()
    again = pickle.loads(pickle.dumps(plan))
    assert again.document == plan.document and repr(again) == repr(plan)
    with pytest.raises(spillway.NotSupportedError, match="has no page"):
        again.html()
    named = spillway.plan(config, model="llama-2-7b", machine="h100", device_memory="24GiB")
    assert named.speed["machine"] == "h100: " + plan.speed["machine"]
    assert named.tokens_per_second == plan.tokens_per_second
    with pytest.raises(spillway.InvalidArgumentError, match="names like it are rtx-4090"):
        spillway.plan(config, model="llama-2-7b", machine="rtx4090")


def test_a_step_has_its_line_though_its_checkpoint_cannot_be_looked_at(tmp_path, data):
    run = tmp_path / "run"
    there = run / "checkpoints/step-3"

    def close_off(step):
        if step.step == 2:
            there.parent.mkdir(exist_ok=True)
            there.symlink_to(there)

    with pytest.raises(OSError, match="manifest.json: Too many levels"):
        train(data, run, steps=4, save_every=3, on_step=close_off)
    there.unlink()
    train(data, run, steps=4, save_every=3, resume=True)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4]


def test_training_has_the_bits_of_the_program(tmp_path, data):
    (tmp_path / "train.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    run_program("train", tmp_path / "train.json", "--model", tmp_path / "model.json", "--data",
                data, "--run", tmp_path / "theirs", "--steps", "5", "--device", "host")
    report = train(data, tmp_path / "ours", steps=5)
    assert report.last_step == report.steps == 5
    assert [step.loss for step in report.history] == losses(tmp_path / "theirs")
    assert report.loss == report.history[-1].loss
    assert report.plan.parameters > 0
    assert "trained    5 step(s) to step 5" in repr(report)
    run_program("report", tmp_path / "ours", "--html", tmp_path / "report.html")
    assert report.html() == report.plan.html() == (tmp_path / "report.html").read_text()


def test_an_export_has_the_bytes_of_the_programs(tmp_path, data):
    spillway.train(CONFIG, model=MODEL, data=data, run=tmp_path / "run", steps=3, progress=False)
    run_program("export", tmp_path / "run", tmp_path / "program", "--dtype", "bf16")
    told = spillway.export(tmp_path / "run", tmp_path / "python", dtype="bf16")
    assert told == (3, told.parameters, "bf16")
    files = sorted(path.name for path in (tmp_path / "program").iterdir())
    assert "model.safetensors" in files
    assert files == sorted(path.name for path in (tmp_path / "python").iterdir())
    for name in files:
        assert (tmp_path / "program" / name).read_bytes() == (
            tmp_path / "python" / name).read_bytes(), name
    with pytest.raises(spillway.InvalidArgumentError, match=str(tmp_path / "python")):
        spillway.export(tmp_path / "run", tmp_path / "python")
    assert spillway.export(tmp_path / "run", tmp_path / "python", replace=True).dtype == "fp32"
    with pytest.raises(spillway.InvalidArgumentError, match="holds the run"):
        spillway.export(tmp_path / "run", tmp_path, replace=True)


def test_ctrl_c_ends_after_the_step_and_the_run_goes_on_with_the_same_bits(tmp_path, data):
    train(data, tmp_path / "whole", steps=4)

    def interrupt(step):
        if step.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(spillway.Interrupted) as caught:
        train(data, tmp_path / "halves", steps=4, on_step=interrupt)
    assert caught.value.report.interrupted
    assert caught.value.report.last_step == 2
    report = train(data, tmp_path / "halves", steps=4, resume=True)
    assert report.steps == 2
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")


def test_what_a_callback_raises_ends_the_run_with_its_state_saved(tmp_path, data):
    def complain(step):
        raise LookupError(f"step {step.step}")

    with pytest.raises(LookupError, match="step 1"):
        train(data, tmp_path / "run", steps=4, on_step=complain)
    assert train(data, tmp_path / "run", steps=2, resume=True).last_step == 2


def test_other_threads_go_on_while_it_trains(tmp_path, data):
    done = threading.Event()
    turns = []

    def count():
        while not done.wait(0.001):
            turns.append(None)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(turns)
    try:
        report = train(data, tmp_path / "run", steps=30, on_step=lambda _: turns.append("step"))
    finally:
        done.set()
        thread.join()
    assert report.last_step == 30
    first, last = turns.index("step"), len(turns) - 1 - turns[::-1].index("step")
    assert None in turns[before:first], "nothing ran while the run was planned"
    assert turns[first:last].count(None) >= 5, "nothing ran between the steps"


def test_a_pool_that_is_made_within_a_run_does_not_keep_its_folder(tmp_path, data):
    pools = []

    def make_pool(_):
        pools.append(multiprocessing.get_context("fork").Pool(1))

    train(data, tmp_path / "run", steps=1, on_step=make_pool)
    try:
        assert train(data, tmp_path / "run", steps=2, resume=True).last_step == 2
    finally:
        for pool in pools:
            pool.terminate()
            pool.join()


def test_options_are_keys_of_the_configuration(tmp_path, data):
    report = train(data, tmp_path / "run", steps=1, host_memory="2GiB", threads=1,
                   state_home="nvme")
    assert report.plan.memory["host"]["budget"] <= 2 * 1024**3
    assert {block["state"] for block in report.plan.blocks} == {"nvme"}


@pytest.mark.parametrize("arguments, kind, words", [
    ({"colour": "red"}, spillway.InvalidArgumentError, "colour is neither an argument"),
    ({"state_home": "moon"}, spillway.InvalidArgumentError, "moon"),
    ({"device_memory": "1KiB"}, spillway.DoesNotFitError, "device"),
    ({"model": "llama-9"}, spillway.InvalidArgumentError, "llama-9"),
    ({"model": 7}, spillway.InvalidArgumentError, "of type int"),
    ({"model": None}, spillway.InvalidArgumentError, "no model"),
])
def test_errors_name_cause_value_and_remedy(arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        spillway.plan(CONFIG, **{"model": MODEL, **arguments})
    assert isinstance(caught.value, spillway.Error)
    assert caught.value.code == kind.code


def test_a_checkpoint_has_its_own_architecture_as_with_the_program(tmp_path, data):
    train(data, tmp_path / "run", steps=1)
    other = {"checkpoint": tmp_path / "run", "progress": False, "data": data,
             "run": tmp_path / "other", "steps": 1}
    model = {**MODEL, "rms_norm_eps": 0.1}
    with pytest.raises(spillway.InvalidArgumentError, match="model excludes checkpoint"):
        spillway.train(CONFIG, model=model, **other)
    with pytest.raises(spillway.InvalidArgumentError, match="model excludes checkpoint"):
        spillway.plan(CONFIG, model=model, checkpoint=tmp_path / "run")
    assert not (tmp_path / "other").exists()
    assert spillway.train(CONFIG, **other).last_step == 1


def test_system_errors_are_os_errors_too(tmp_path):
    with pytest.raises(FileNotFoundError):
        spillway.plan(tmp_path / "missing.json", model=MODEL)
    with pytest.raises(spillway.Error) as caught:
        train(tmp_path / "no data", tmp_path / "run", steps=1)
    assert "no data" in str(caught.value)


def test_two_runs_in_one_folder_are_refused(tmp_path, data):
    def again(_):
        with pytest.raises(spillway.BusyError, match="run"):
            train(data, tmp_path / "run", steps=1, resume=True)

    assert train(data, tmp_path / "run", steps=1, on_step=again).steps == 1
