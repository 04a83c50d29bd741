"""What `spillway.torch.plan` says beforehand, against what optimizers then take of the process."""
import gc
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import spillway
import spillway.torch
from spillway.errors import DoesNotFitError, InvalidArgumentError, NotSupportedError

MACHINES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "machines"
LEAF = 4096


def layers(count: int = 4, width: int = 512, device: str = "cpu",
           dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    with torch.device(device):
        blocks = [torch.nn.Linear(width, width) for _ in range(count)]
        return torch.nn.Sequential(*blocks).to(dtype)


def status(key: str) -> int:
    """Bytes of memory of this process."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def resident() -> int:
    """Those that are of no file."""
    return status("RssAnon")


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    width = next(model.parameters()).shape[-1]
    optimizer.zero_grad()
    model(torch.ones(1, width, dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()


def test_a_model_of_any_size_is_planned_on_meta() -> None:
    model = layers(80, 16384, "meta")  # 21 billion parameters
    count = sum(parameter.numel() for parameter in model.parameters())
    before = resident()
    plan = spillway.torch.plan(model, state_format="split", nvme=["/data"],
                               machine=MACHINES / "dgx-h100.json")
    assert resident() - before < 256 << 20
    assert plan.parameters == count
    assert plan.host == pytest.approx(4 * count, rel=0.01)        # values and gradients
    assert plan.disk == pytest.approx(2 * 12 * count, rel=0.01)   # two slots of each tile
    assert plan.traffic["disk_read"] == pytest.approx(10 * count, rel=0.01)
    assert plan.traffic["disk_written"] == pytest.approx(12 * count, rel=0.01)
    assert plan.fits and plan.step_seconds is None


def memory_of_a_process(state_format: str, folder: pathlib.Path | None) -> dict[str, int]:
    """Bytes that a process has planned, and those that it then had at the end and at most."""
    program = """if True:
        import json, sys, torch, spillway.torch
        from spillway._load import native
        sys.path.insert(0, sys.argv[1])
        from forecast_test import layers, resident, status, step
        step(small := layers(2, 64), spillway.torch.OffloadedAdamW(small.parameters()))
        options = {"state_format": sys.argv[2], "nvme": sys.argv[3:]}
        plan = spillway.torch.plan(layers(16, 2048, "meta"), **options)
        before = resident()
        model = layers(16, 2048)
        assert plan.document == spillway.torch.plan(model, **options).document
        optimizer = spillway.torch.OffloadedAdamW(model.parameters(), **options)
        for _ in range(2):
            step(model, optimizer)
        native.release_freed_memory()
        print(json.dumps({"host": plan.host, "disk": plan.disk, "end": resident() - before,
                          "most": status("VmHWM") - status("RssFile") - before}))
        sys.stdout.flush()
        sys.stdin.read()
    """
    arguments = [str(pathlib.Path(__file__).parent), state_format]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, *([str(folder)] if folder else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # Else glibc keeps freed tensors once a larger buffer was freed, as torch's products in bf16
        # have it on processors without AVX-512.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": str(4 << 20)})
    line = process.stdout.readline()
    used = 0 if folder is None else sum(file.stat().st_blocks * 512
                                        for file in folder.rglob("*") if file.is_file())
    process.communicate()
    assert process.returncode == 0
    return {**json.loads(line), "used": used}


@pytest.mark.parametrize("state_format, on_disk", [("fp32", False), ("split", True),
                                                   ("bf16", False), ("int8", True)])
def test_the_optimizer_takes_what_was_planned(tmp_path, state_format, on_disk) -> None:
    found = memory_of_a_process(state_format, tmp_path if on_disk else None)
    assert found["end"] == pytest.approx(found["host"], rel=0.05, abs=24 << 20)
    # What the model's values took serves gradients; a model is made in fp32, and converted.
    values = 2 * 16 * (2048 * 2048 + 2048)
    assert found["most"] < max(found["host"], 3 * values) + values / 3
    if on_disk:
        assert found["disk"] * 0.45 <= found["used"] <= found["disk"] * 1.01 + (1 << 20)


def test_groups_and_element_types_are_those_of_the_optimizer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.LayerNorm(300))
    model[0].to(torch.bfloat16)
    groups = [{"params": [model[0].weight]},
              {"params": [model[0].bias, *model[1].parameters()], "weight_decay": 0.0}]
    plan = spillway.torch.plan(model, groups, state_format="split")
    # Each parameter begins on a leaf, in its own element type.
    padded = {2: 22 * LEAF + LEAF, 4: 2 * LEAF}
    least = padded[2] * (10 + 4) + padded[4] * (12 + 8)
    assert least <= plan.host <= least + (4 << 20) * 16 * 2
    assert plan.parameters == 300 * 300 + 300 + 600
    one = spillway.torch.plan(model, [("only", model[0].weight)], state_format="split")
    assert one.parameters == 90000
    assert one.model == 300 * 2 + 600 * 4  # what is not trained stays with torch


def test_frozen_parameters_pass_through_the_device_or_stay() -> None:
    model = layers(6, 512, "meta")
    for block in model[:4]:
        block.requires_grad_(False)
    plan = spillway.torch.plan(model)
    frozen = 4 * (512 * 512 + 512) * 2
    assert plan.model == frozen
    streamed = spillway.torch.plan(model, device_memory="8MiB")
    assert streamed.model == 0
    assert streamed.host - plan.host >= frozen
    # A forward and a backward pass fetch every block, less what stays between them.
    blocks = 6 * (512 * 512 + 512) * 2
    assert blocks <= streamed.traffic["to_device"] <= 2 * blocks * 1.05
    assert streamed.device <= 8 << 20
    with pytest.raises(DoesNotFitError, match="device memory of at least"):
        spillway.torch.plan(model, device_memory="100KiB")


def test_it_refuses_with_the_optimizers_words_and_names_what_would_fit() -> None:
    plan = spillway.torch.plan(layers(8, 1024, "meta"), host_memory="84MiB")
    assert not plan.fits
    with pytest.raises(DoesNotFitError) as refused:
        spillway.torch.OffloadedAdamW(layers(8, 1024).parameters(), host_memory="84MiB")
    assert plan.refusal in str(refused.value)
    assert "host_memory of at least" in plan.refusal and "--" not in plan.refusal
    # 8.4 million parameters: 16, 14, 10 or 8 bytes each, or 4 and staging.
    assert plan.fitting == ['state_format="int8"', 'nvme=[...] and state_format="int8"']
    spillway.torch.OffloadedAdamW(layers(8, 1024).parameters(), host_memory="84MiB",
                                  state_format="int8")
    assert "would fit: " + "; ".join(plan.fitting) in str(plan)


def test_another_machine_has_its_own_memory_and_rates(tmp_path) -> None:
    machine = json.loads((MACHINES / "h100.json").read_text())
    machine["host_memory"] = "20MiB"
    small = tmp_path / "small.json"
    small.write_text(json.dumps(machine))
    model = layers(4, 1024, "meta")
    plan = spillway.torch.plan(model, machine=small)
    assert "has 20.00 MiB" in plan.refusal and machine["name"] in plan.refusal
    here = spillway.torch.plan(model, machine=MACHINES / "h100.json", pass_seconds=2.0)
    update = here.traffic["update_traffic"] / (machine["host_memory_gbps"] * 1e9)
    assert here.step_seconds == pytest.approx(2.0 + update, rel=0.01)
    named = spillway.torch.plan(model, machine="h100", pass_seconds=2.0)
    assert named.step_seconds == here.step_seconds
    gpu = spillway.torch.plan(model, machine=MACHINES / "h100.json", device="cuda",
                              pass_seconds=0.0)
    assert gpu.pinned == gpu.host
    assert gpu.traffic["from_device"] == 4 * (1024 * 1024 + 1024) * 2


def test_this_machine_is_measured(tmp_path) -> None:
    plan = spillway.torch.plan(layers(4, 1024, "meta"), nvme=tmp_path, pass_seconds=0.25)
    assert 0.25 < plan.step_seconds < 5
    assert list(tmp_path.iterdir()) == []


def test_it_prints_as_a_table_and_reads_as_a_document() -> None:
    plan = spillway.torch.plan(layers(2, 256, "meta"), pass_seconds=0.1,
                               machine=MACHINES / "h100.json")
    text = str(plan)
    for line in ("131,584 trained parameters", "host memory", "each step moves",
                 "seconds of a step", "fits"):
        assert line in text
    assert json.loads(json.dumps(plan.document))["host"] == plan["host"]
    assert sum(plan.memory["host"].values()) == plan.host


@pytest.mark.parametrize("arguments, error, words", [
    ({"device": "mps"}, NotSupportedError, "there are cpu, and cuda"),
    ({"device": "cuda"}, InvalidArgumentError, "machine="),
    ({"dtype": torch.float64}, NotSupportedError, "float32, bfloat16 or float16"),
    ({"dtype": torch.float32, "state_format": "split"}, InvalidArgumentError, "bf16 parameters"),
    ({"state_format": "fp8"}, InvalidArgumentError, "fp8"),
    ({"nvme": b"/data"}, InvalidArgumentError, "nvme"),
    ({"machine": "nowhere.json"}, spillway.Error, "nowhere.json"),
    ({"pass_seconds": -1.0, "machine": MACHINES / "h100.json"}, InvalidArgumentError, "at least 0"),
    ({"params": []}, InvalidArgumentError, "nothing to train"),
    ({"device_memory": "1MiB", "blocks": []}, InvalidArgumentError, "no blocks were found"),
])
def test_what_cannot_be_planned_is_refused(arguments, error, words) -> None:
    if arguments.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(error, match=words):
        spillway.torch.plan(layers(2, 64, "meta"), **arguments)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="give it the model"):
        spillway.torch.plan([torch.nn.Parameter(torch.ones(3))])
