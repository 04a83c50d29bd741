"""What configurations make of a run: the files of the monitors, read by the tensorboard package and
by csv, and the choices for "auto". Usage: config_training_test.py SPILLWAY"""

import csv
import json
import pathlib
import subprocess
import sys

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SPILLWAY = sys.argv[-1]
MODEL = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64,
         "vocab_size": 256, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}


@pytest.fixture
def train(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    tokens = numpy.random.default_rng(3).integers(0, 256, 4000, dtype=numpy.uint16)
    tokens.tofile(data / "train.bin")
    tokens[:400].tofile(data / "val.bin")
    (data / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 256}))
    (tmp_path / "model.json").write_text(json.dumps(MODEL))

    def run(config, steps, *more):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "train.json").write_text(text)
        done = subprocess.run(
            [SPILLWAY, "train", tmp_path / "train.json", "--model", tmp_path / "model.json",
             "--data", data, "--run", tmp_path / "run", "--steps", str(steps), *more],
            capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done

    run.path = tmp_path
    return run


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def config(output):
    return {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2,
            "fp16": {"enabled": True, "initial_scale_power": 8},
            "tensorboard": {"enabled": True, "output_path": output, "job_name": "job"},
            "csv_monitor": {"enabled": True},
            "spillway": {"eval_every": 2, "context": 16, "commit_every": 1}}


def test_both_are_written_and_continue(train):
    output = train.path / "boards"
    train(config(str(output)), 4)
    train(config(str(output)), 7, "--resume")
    lines = lines_of(train.path / "run")
    assert [line["step"] for line in lines] == list(range(1, 8))
    windows = [6 * line["step"] for line in lines]

    events = EventAccumulator(str(output / "job")).Reload()
    expected = {"train_loss": "loss", "lr": "lr", "loss_scale": "scale"}
    for name, key in expected.items():
        found = events.Scalars(f"Train/Samples/{name}")
        assert [event.step for event in found] == windows
        # TensorBoard's scalars are fp32.
        assert [event.value for event in found] == [float(numpy.float32(line[key]))
                                                    for line in lines]
    evaluated = events.Scalars("Train/Samples/eval_loss")
    assert [event.step for event in evaluated] == [6 * line["step"] for line in lines
                                                   if "val_loss" in line]

    folder = train.path / "run" / "csv_monitor" / "DeepSpeedJobName"
    for name, key in expected.items():
        with open(folder / f"Train_Samples_{name}.csv", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        assert head == ["step", name]
        assert [int(row[0]) for row in rows] == windows
        assert [float(row[1]) for row in rows] == [line[key] for line in lines]


def test_csv_rows_beyond_the_commit_are_cut_and_wandb_is_answered(train):
    settings = config("") | {"wandb": {"enabled": True, "project": "p"}}
    done = train(settings, 3)
    assert "Spillway sends nothing over a network" in done.stderr
    folder = train.path / "run" / "csv_monitor" / "DeepSpeedJobName"
    file = folder / "Train_Samples_lr.csv"
    with open(file, "a", encoding="utf-8") as end:
        end.write("24,0.5\n30,0.")
    train(settings, 5, "--resume")
    steps = [row.split(",")[0] for row in file.read_text().splitlines()]
    assert steps == ["step", "6", "12", "18", "24", "30"]
    assert list((train.path / "run" / "tensorboard" / "job").glob("events.out.tfevents.*"))


def test_automatic_choices_are_one_line_each_and_kept(train):
    automatic = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                 "train_batch_size": "auto", "bf16": {"enabled": "auto"},
                 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
                 "spillway": {"context": 16}}
    told = train(automatic, 2).stderr
    assert told.count("bf16.enabled") == told.count("train_micro_batch_size_per_gpu") == 1, told
    train(automatic, 3, "--resume", "--device-memory", "1MiB")
    recorded = json.loads((pathlib.Path(train.path) / "run" / "config.json").read_text())["train"]
    assert recorded["train_micro_batch_size_per_gpu"] == 8
    assert recorded["bf16"]["enabled"]


@pytest.mark.parametrize("name", ["trainer_zero3_auto", "trainer_zero2_auto", "factory_zero2_auto",
                                  "factory_zero3_offload_auto", "axolotl_zero3_bf16",
                                  "axolotl_zero1_compile"])
def test_public_templates_train_as_they_are(train, name):
    corpus = pathlib.Path(__file__).parent.parent / "config/config_fuzz_corpus"
    train((corpus / f"{name}.json").read_text(), 2)
    assert [line["step"] for line in lines_of(train.path / "run")] == [1, 2]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
