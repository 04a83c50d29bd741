"""Where a program names folders: one path is one folder, everywhere in the package."""
import os
import pathlib

import jax.numpy as jnp
import numpy
import pytest
import torch

import spillway
from spillway.jax import offloaded_adamw
from spillway.torch import OffloadedAdamW, initialize


def with_torch(nvme):
    return OffloadedAdamW([torch.nn.Parameter(torch.zeros(8))], nvme=nvme)


def with_jax(nvme):
    transformation = offloaded_adamw(1e-2, nvme=nvme)
    transformation.init({"w": jnp.zeros(8)})
    return transformation


def with_trainer(nvme):
    import transformers

    from spillway.huggingface import SpillwayTrainer

    args = transformers.TrainingArguments(output_dir="run", use_cpu=True, report_to=[])
    trainer = SpillwayTrainer(model=torch.nn.Linear(8, 1), args=args, spillway={"nvme": nvme})
    return trainer.create_optimizer()


MAKERS = [with_torch, with_jax, with_trainer]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """The place of a program that has two folders for state."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("disk", "home/disk"):
        (tmp_path / name).mkdir(parents=True)


def folders(path):
    return sorted(each.name for each in pathlib.Path(path).iterdir() if each.name != "run")


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("given, lies_in", [
    ("disk", "disk"), (pathlib.Path("disk"), "disk"), (["disk"], "disk"), (("disk",), "disk"),
    ("~/disk", "home/disk")])
def test_a_text_or_a_path_is_one_folder(tmp_path, make, given, lies_in):
    held = make(given)
    assert folders(tmp_path / lies_in), "no state lies there"
    assert [path for path in tmp_path.rglob("*.swap") if path.parent != tmp_path / lies_in] == []
    assert folders(tmp_path) == ["disk", "home"]
    del held


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("given, words", [
    (b"/disk", "bytes"), ([b"/disk"], "bytes"), (7, "of type int"), ([None], "of type NoneType"),
    ("", "empty path"), (["disk", ""], "empty path"), ("file", "is not a directory; mount its"),
    ("none", "none is not a directory; mount its drive or make it"),
    (["disk", "disk/none"], "disk/none is not a directory"), ("file/none", "is not a directory"),
    (["disk", "./disk"], "twice"), (["disk", "link"], "link and .*disk.*twice"),
    (["link/none", "disk/none"], "twice"), ("loop", "Too many levels of symbolic links"),
    ("a" * 300, "File name too long"), (["home", "disk/" + "a" * 300], "too long"),
    ("a\udcffb", "UTF-8"), ("a\0b", "zero byte")])
def test_what_is_no_folder_is_refused_by_name(tmp_path, make, given, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(spillway.InvalidArgumentError, match=f"nvme.*{words}"):
        make(given)
    assert folders(tmp_path) == ["disk", "file", "home", "link", "loop"]
    assert folders(tmp_path / "disk") == []


@pytest.mark.parametrize("make", MAKERS)
def test_a_folder_is_the_same_by_every_name(tmp_path, make):
    (tmp_path / "link").symlink_to("disk")
    first, second = make("disk"), make("link")  # as a cell of a notebook does that runs again
    assert folders(tmp_path / "disk") == ["optimizer2", "tiles-0.swap"]
    del first
    third = make("disk")
    assert folders(tmp_path / "disk") == ["optimizer2", "tiles-0.swap"]
    del second, third
    make("link")


def test_a_configuration_with_a_missing_folder_changes_no_model():
    model = torch.nn.Linear(8, 1)
    with pytest.raises(spillway.InvalidArgumentError, match="none is not a directory; mount its"):
        initialize(model=model, config={
            "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
            "zero_optimization": {"stage": 2, "offload_optimizer": {
                "device": "nvme", "nvme_path": "none"}}})
    assert model.weight.dtype == torch.float32


def test_a_native_run_reads_paths_alike():
    model = {"architectures": ["LlamaForCausalLM"], "vocab_size": 16, "hidden_size": 8,
             "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = {"train_micro_batch_size_per_gpu": 1}
    for name in ("run", "machine", "checkpoint"):
        with pytest.raises(spillway.InvalidArgumentError, match=f"{name} is .*b'/disk'"):
            spillway.plan(config, model=model, **{name: b"/disk"})
    for name in ("data", "run"):
        with pytest.raises(spillway.InvalidArgumentError, match=f"{name} is an empty path"):
            spillway.train(config, model=model, **{"data": "data", "run": "run", name: ""})
    with pytest.raises(spillway.InvalidArgumentError, match="nvme is .*b'/disk'"):
        spillway.plan(config, model=model, nvme=b"/disk")
    with pytest.raises(spillway.InvalidArgumentError, match="config is 7, of type int"):
        spillway.plan(7, model=model)


def test_a_folder_stays_the_same_after_chdir(tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(8))
    optimizer = OffloadedAdamW([parameter], nvme="disk")
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    parameter.grad = torch.ones(8)
    optimizer.step()
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], torch.full((8,), 0.1))
    assert folders(tmp_path / "elsewhere") == []


def test_a_configuration_in_memory_may_have_paths_and_numbers_of_numpy(tmp_path):
    model = torch.nn.Linear(8, 1)
    engine, *_ = initialize(model=model, config={
        "train_micro_batch_size_per_gpu": numpy.int64(4),
        "optimizer": {"type": "AdamW", "params": {"lr": numpy.float32(0.5)}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {
            "device": "nvme", "nvme_path": pathlib.Path("disk")}}})
    assert engine.train_micro_batch_size_per_gpu() == 4 and engine.get_lr() == [0.5]
    assert folders(tmp_path / "disk") == ["tiles-0.swap"]
    with pytest.raises(spillway.InvalidArgumentError, match="of type object"):
        initialize(model=model, config={"train_micro_batch_size_per_gpu": object()})
