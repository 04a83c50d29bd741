"""A frozen base on disk: the bits of one in host memory and of one that stays, staging alone in
host memory, and what is read, found and refused."""
import os
import signal
import subprocess
import sys

import pytest
import torch
from quantized_layers import KINDS
from quantized_test import BLOCKS, BUDGET, batch, equal, make, train, trained
from streamed_one_rank_test import group  # noqa: F401

import spillway.torch
from spillway import CorruptDataError, InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedAdamW, offload_model

BUFFERS = KINDS[0]
FILE = "frozen/frozen-0.swap"


def on_disk(folder, kind=BUFFERS, recomputes=False, **options):
    model = make(kind, recomputes)
    offload_model(model, BUDGET, frozen="nvme", frozen_nvme=folder)
    return model, OffloadedAdamW(trained(model), lr=1e-2, max_norm=1.0, **options)


def in_memory(kind=BUFFERS, **options):
    model = make(kind)
    offload_model(model, BUDGET, **options)
    return model, OffloadedAdamW(trained(model), lr=1e-2, max_norm=1.0)


def memory_of(optimizer):
    (shard,) = optimizer._shards
    return {(tier, what): size for tier, what, size in shard.trainer.memory()}


def pages_of_block(model):
    """Bytes of what a block has that is frozen, each tensor on a multiple of 64, in whole pages."""
    end = 0
    for tensor in model._spillway_streaming.tensors_of(0):
        if not tensor.requires_grad:
            end = -(-end // 64) * 64 + tensor.nbytes
    return -(-end // 4096) * 4096


def expect_base(model, resident):
    """Compares what is frozen where the program finds it outside of passes."""
    found, wanted = model.state_dict(), resident.state_dict()
    plain = [name for name, value in wanted.items()
             if type(value) is torch.Tensor and ("norm" in name or "base" in name)]
    assert plain and all(torch.equal(found[name], wanted[name]) for name in plain)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_has_the_bits_of_a_base_in_host_memory_and_of_one_that_stays(tmp_path, kind, recomputes):
    resident = make(kind)
    expected = train(resident, OffloadedAdamW(trained(resident), lr=1e-2, max_norm=1.0), range(5))
    streamed, optimizer = in_memory(kind)
    equal(expected, train(streamed, optimizer, range(5)))
    model, optimizer = on_disk(tmp_path, kind, recomputes)
    equal(expected, train(model, optimizer, range(5)))
    equal([trained(resident)], [trained(model)])
    assert ("host", "frozen parameters") not in memory_of(optimizer)
    # What is frozen is there wherever the program looks at it.
    expect_base(model, resident)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_each_block_is_read_twice_a_pass_into_staging(tmp_path, recomputes, passes):
    model = make(BUFFERS, recomputes)
    plan = spillway.torch.plan(model, device_memory=BUDGET, frozen="nvme", frozen_nvme=tmp_path,
                               accumulation_steps=passes)
    offload_model(model, BUDGET, frozen="nvme", frozen_nvme=[tmp_path])
    optimizer = OffloadedAdamW(trained(model), accumulation_steps=passes)
    (shard,) = optimizer._shards
    pages = pages_of_block(model)
    assert plan.traffic["disk_read"] == 2 * passes * BLOCKS * pages
    for step in range(3):
        before = shard.trainer.read
        for number in range(passes):
            model(batch(passes * step + number)).backward()
        optimizer.step()
        assert shard.trainer.read - before == plan.traffic["disk_read"]
    found = memory_of(optimizer)
    assert found["host", "staging of frozen parameters"] == 2 * pages
    assert found["nvme", "frozen parameters"] == BLOCKS * pages == plan.disk
    sizes = [sum(size for (tier, _), size in found.items() if tier == where)
             for where in ("host", "device")]
    assert sizes == [plan.host, plan.device]
    assert os.path.getsize(tmp_path / FILE) > BLOCKS * pages


def test_what_a_program_writes_is_read_by_passes(tmp_path):
    def change(model, step):
        base = [block.base.qweight for block in model.blocks]
        with torch.no_grad():
            if step == 1:
                base[2].add_(1)
            elif step == 2:
                base[3].data = base[3].data + 1
            elif step == 3:
                model.blocks[4].norm.weight.data.mul_(2)
            elif step == 4:
                model.load_state_dict({name: value.flip(0) if "qweight" in name else value
                                       for name, value in model.state_dict().items()})

    resident = make(BUFFERS)
    with_resident = OffloadedAdamW(trained(resident), lr=1e-2, max_norm=1.0)
    model, optimizer = on_disk(tmp_path)
    for step in range(6):
        change(resident, step)
        change(model, step)
        equal(train(resident, with_resident, [step]), train(model, optimizer, [step]))


def test_a_changed_byte_is_found_and_named(tmp_path):
    model, optimizer = on_disk(tmp_path)
    train(model, optimizer, range(1))
    codes = model.blocks[5].base.qweight.numpy().tobytes()
    with open(tmp_path / FILE, "r+b") as file:
        at = file.read().index(codes) + len(codes) // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptDataError, match=r"cannot be read \(tile 5\)") as it:
        train(model, optimizer, range(1, 2))
    assert str(tmp_path / FILE) in str(it.value) and "start again" in str(it.value)


def test_files_go_with_the_optimizer_and_values_stay(tmp_path):
    resident = make(BUFFERS)
    model, optimizer = on_disk(tmp_path)
    other, with_other = on_disk(tmp_path)
    assert (tmp_path / FILE).exists()
    equal(train(model, optimizer, range(2)), train(other, with_other, range(2)))
    optimizer.close()
    assert not (tmp_path / FILE).exists()
    expect_base(model, resident)
    again = OffloadedAdamW(trained(model), lr=1e-2)
    assert ("host", "frozen parameters") not in memory_of(again)
    train(model, again, range(2))
    assert torch.equal(model.blocks[3].base.qweight, resident.blocks[3].base.qweight)


PROGRAM = """if True:
    import os, pathlib, signal, sys
    import torch
    sys.path.insert(0, sys.argv.pop(1))
    from frozen_disk_test import on_disk, train, trained

    folder, begin, end, dies = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
    model, optimizer = on_disk(folder)
    if begin > 0:
        optimizer.load(folder / f"step{begin}")
    found = train(model, optimizer, range(begin, end))
    optimizer.save(folder / f"step{end}")
    torch.save([found, [p.detach() for p in trained(model)]], folder / f"found{end}")
    if dies:
        train(model, optimizer, range(end, end + 1))
        model.blocks[2].forward(torch.randn(5, 64))  # others are on their way
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(*arguments):
    return subprocess.run([sys.executable, "-c", PROGRAM, os.path.dirname(__file__),
                           *map(str, arguments)], check=False).returncode


def test_a_run_that_was_killed_goes_on_with_the_same_bits(tmp_path):
    assert run(tmp_path, 0, 3, 1) == -signal.SIGKILL
    assert (tmp_path / FILE).exists()
    assert run(tmp_path, 3, 6, 0) == 0
    assert not (tmp_path / FILE).exists()
    model, optimizer = on_disk(tmp_path)
    equal(train(model, optimizer, range(6)),
          [found for end in (3, 6) for found in torch.load(tmp_path / f"found{end}")[0]])
    equal([trained(model)], [torch.load(tmp_path / "found6")[1]])


def test_what_a_killed_process_has_left_goes_without_a_base_on_disk_too(tmp_path):
    assert run(tmp_path, 0, 1, 1) == -signal.SIGKILL
    assert (tmp_path / FILE).exists()
    OffloadedAdamW([torch.nn.Parameter(torch.randn(3))], nvme=tmp_path)
    assert not (tmp_path / FILE).exists()


def test_it_is_on_disk_where_host_memory_lacks_the_room(tmp_path):
    model = make(BUFFERS)
    whole = spillway.torch.plan(model, device_memory=BUDGET)
    assert whole.traffic["disk_read"] == 0
    frozen = whole.memory["host"]["frozen parameters"]
    for room, there in ((0, False), (frozen // 2, True)):
        budget = whole.host + whole.device - room
        plan = spillway.torch.plan(model, device_memory=BUDGET, host_memory=budget,
                                   frozen_nvme=tmp_path)
        assert plan.fits and (plan.traffic["disk_read"] > 0) == there
        streamed = make(BUFFERS)
        offload_model(streamed, BUDGET, frozen_nvme=tmp_path)
        optimizer = OffloadedAdamW(trained(streamed), host_memory=budget)
        assert (("nvme", "frozen parameters") in memory_of(optimizer)) == there
        optimizer.close()
    plan = spillway.torch.plan(model, device_memory=BUDGET, host_memory=budget, frozen="host")
    assert not plan.fits and plan.fitting == ['frozen="nvme"']  # state on disk takes more staging


def test_state_and_base_may_share_the_folders_of_the_optimizer(tmp_path):
    expected = train(*in_memory(), range(3))
    model = make(BUFFERS)
    offload_model(model, BUDGET, frozen="nvme")
    optimizer = OffloadedAdamW(trained(model), lr=1e-2, max_norm=1.0, nvme=tmp_path)
    equal(expected, train(model, optimizer, range(3)))
    assert (tmp_path / FILE).exists() and (tmp_path / "tiles-0.swap").exists()


def test_what_cannot_be_is_refused_by_name(tmp_path, group):  # noqa: F811
    with pytest.raises(InvalidArgumentError, match="frozen is 'disk'; it is one of auto, host"):
        in_memory(frozen="disk")
    with pytest.raises(InvalidArgumentError, match='frozen is "host", and frozen_nvme names'):
        in_memory(frozen="host", frozen_nvme=tmp_path)
    with pytest.raises(InvalidArgumentError, match="frozen_nvme .*nowhere is not a directory"):
        in_memory(frozen="nvme", frozen_nvme=tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match='frozen is "nvme", and no drive is named'):
        in_memory(frozen="nvme")
    with pytest.raises(InvalidArgumentError, match='frozen is "nvme", and no drive is named'):
        spillway.torch.plan(make(BUFFERS), device_memory=BUDGET, frozen="nvme")
    with pytest.raises(NotSupportedError, match="ranks stream the model from one copy"):
        on_disk(tmp_path, process_group=group)
