"""State of which a call has replaced a part when it is cut off: steps are refused until all of it
is replaced."""
import copy
import errno
import shutil

import pytest
import torch

import spillway
import spillway.torch
from spillway.torch import OffloadedAdamW

TYPES = (torch.bfloat16, torch.float32, torch.bfloat16, torch.float32)
CAUSES = {"the disk": spillway.IoError("the disk fails", errno.EIO), "Ctrl-C": KeyboardInterrupt()}


def parameters():
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(40, generator=generator).to(dtype)) for dtype in TYPES]


def give_gradients(tensors, step):
    generator = torch.Generator().manual_seed(step)
    for tensor in tensors:
        tensor.grad = torch.randn(40, generator=generator).to(tensor.dtype)


def trained(steps, **options):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, lr=1e-2, **options)
    return run((tensors, optimizer), steps)


def run(of, steps):
    tensors, optimizer = of
    for step in steps:
        give_gradients(tensors, step)
        optimizer.step()
    return of


def expect_equal(some, others):
    for one, other in zip(run(some, range(20, 23))[0], run(others, range(20, 23))[0], strict=True):
        assert torch.equal(one, other)


def expect_refused(of, folder, cause):
    tensors, optimizer = of
    give_gradients(tensors, 9)
    for call in (optimizer.step, optimizer.state_dict, lambda: optimizer.save(folder)):
        with pytest.raises(spillway.CorruptDataError, match=rf"{cause}\(\) was cut off"):
            call()
    optimizer.zero_grad()
    assert not folder.exists()


def cut_off(optimizer, number, cause):
    """Makes a write raise, after as many that are made."""
    left = number
    for shard in optimizer._shards:

        def write(*arguments, whole=shard.write):
            nonlocal left
            if left == 0:
                raise cause
            left -= 1
            whole(*arguments)

        shard.write = write


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("number", range(len(TYPES)))
def test_a_state_dict_of_two_types_is_loaded_by_all(tmp_path, number, cause):
    state = copy.deepcopy(trained(range(3))[1].state_dict())
    usual, cut = trained(range(10, 12)), trained(range(10, 12), nvme=tmp_path)
    usual[1].load_state_dict(state)
    cut_off(cut[1], number, CAUSES[cause])
    with pytest.raises(type(CAUSES[cause])):
        cut[1].load_state_dict(state)
    for shard in cut[1]._shards:
        del shard.write
    expect_refused(cut, tmp_path / "refused", "load_state_dict")
    cut[1].load_state_dict(state)
    # What is fp32 keeps the values that it has, as with torch.
    expect_equal(cut, usual)


def damage(folder):
    with open(folder / "state-0.swap", "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


def test_an_engine_does_not_mix_a_model_with_an_older_state(tmp_path):
    config = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}

    def engine(steps):
        torch.manual_seed(1)
        made = spillway.torch.initialize(model=torch.nn.Linear(4, 4), config=config)[0]
        return go_on(made, steps)

    def go_on(made, steps):
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            made.backward(made(torch.randn(2, 4, generator=generator)).square().sum())
            made.step()
        return made

    saved = engine(range(3))
    for tag in ("whole", "damaged"):
        saved.save_checkpoint(tmp_path, tag)
    damage(tmp_path / "damaged" / "optimizer")
    cut = engine(range(10, 12))
    with pytest.raises(spillway.CorruptDataError, match="damaged"):
        cut.load_checkpoint(tmp_path, "damaged")
    with pytest.raises(spillway.CorruptDataError, match=r"load_checkpoint\(\) was cut off"):
        go_on(cut, range(1))
    cut.optimizer.zero_grad()
    cut.load_checkpoint(tmp_path, "whole")
    for one, other in zip(go_on(cut, range(3, 6)).module.parameters(),
                          go_on(saved, range(3, 6)).module.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("part", ["shard0", "shard1"])
def test_a_checkpoint_with_a_damaged_part_is_no_mixture(tmp_path, part, on_disk):
    saved = trained(range(3))
    saved[1].save(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "damaged")
    damage(tmp_path / "damaged" / part)
    usual = trained(range(10, 12))
    tensors, optimizer = trained(range(10, 12), **({"nvme": tmp_path} if on_disk else {}))
    with pytest.raises(spillway.CorruptDataError, match="damaged"):
        optimizer.load(tmp_path / "damaged")
    if part == "shard0":
        expect_equal((tensors, optimizer), usual)
        return
    expect_refused((tensors, optimizer), tmp_path / "refused", "load")
    with pytest.raises(spillway.CorruptDataError, match=r"load\(\) was cut off"):
        optimizer.load_state_dict(usual[1].state_dict())
    optimizer.load(tmp_path / "saved")
    expect_equal((tensors, optimizer), saved)
