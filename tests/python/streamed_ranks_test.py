"""Models that ranks stream together: one copy of the parameters in memory of the machine, and the
bits of one process whose model stays and that is given the ranks' batches in order."""
import contextlib
import copy
import gc
import pathlib
import re

import pytest
import torch
import torch.distributed as dist
from rank_processes import ranks_at
from streaming_test import batch, freeze, model_of_blocks

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, _machine, offload_model

BUDGET = "800KB"  # of 1.3 MB
FP32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Products of matrices have other bits with other numbers of threads; ranks have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


def groups(model):
    """Two groups, whose parameters are in another order than those of the model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [{"params": [p for p in trained if p.dim() > 1][::-1]},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0, "lr": 1e-3}]


def make(dtype=FP32, group=None, frozen=False, seed=1, kind=OffloadedAdamW, **options):
    """A model and its optimizer: of a rank, or alone with a model that stays."""
    torch.manual_seed(seed)
    model = model_of_blocks().to(dtype)
    if frozen:
        freeze(model)
    if group is not None:
        offload_model(model, BUDGET)
        options["process_group"] = group
    options["deferred"] = model if options.get("deferred") else None
    return model, kind(groups(model), lr=1e-2, max_norm=1.0, threads=1, **options)


def train(model, optimizer, steps, rank=0, ranks=1, passes=1, alone_for=1):
    """Micro-batch m of rank r is number m * ranks + r; one process alone is given those of all."""
    seen = []
    for step in steps:
        for m in range(passes):
            for r in range(alone_for):
                number = m * ranks * alone_for + rank + r
                loss = model(batch(1000 * step + number).to(next(model.parameters()).dtype))
                loss.backward()
                seen.append(loss.item())
        optimizer.step(divisor=passes * alone_for)
        optimizer.zero_grad()
        seen.append(optimizer.grad_norm)
    return seen


def values(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same(some, others):
    return all(torch.equal(each, others[name]) for name, each in some.items())


@contextlib.contextmanager
def machine(name):
    """Makes this process one of a machine of that name."""
    before, _machine.machine_id = _machine.machine_id, lambda: name
    try:
        yield
    finally:
        _machine.machine_id = before


def trains(group, rank, dtype, passes, machines, options):
    ranks = dist.get_world_size(group)
    options = {**options, "nvme": [f"{options['nvme']}/{rank}"]} if "nvme" in options else options
    with machine(machines[rank]):  # all begin as the first rank does
        model, optimizer = make(dtype, group, seed=1 + rank, accumulation_steps=passes, **options)
    (shard,) = optimizer._shards
    assert shard._memory_of_machine.machines == len(set(machines[:ranks]))
    before = values(model)
    seen = train(model, optimizer, range(3), rank, ranks, passes or 1)
    used = {address for block in model.blocks for address in block.seen}
    on_device = sum(size for tier, _, size in shard._viewer.memory() if tier == "device")
    return before, values(model), seen, len(used), on_device


@pytest.mark.parametrize("ranks, dtype, passes, machines, options", [
    (1, FP32, 1, "aaa", {}), (2, FP32, 2, "aaa", {}), (3, FP32, 1, "aaa", {"frozen": True}),
    (2, BF16, 2, "aaa", {"state_format": "split", "frozen": True}),
    (3, BF16, 1, "aaa", {"state_format": "int8"}), (2, FP32, 1, "aaa", {"stage": 1}),
    (2, FP32, None, "aaa", {"nvme": True}),
    (2, FP32, 2, "aaa", {"deferred": True, "frozen": True}),
    (2, FP32, 1, "abb", {"frozen": True, "deferred": True}),
    (3, BF16, 2, "aba", {"state_format": "split"})])
def test_ranks_have_the_bits_of_one_process(run, tmp_path, ranks, dtype, passes, machines, options):
    if "nvme" in options:
        for rank in range(ranks):
            (tmp_path / str(rank)).mkdir()
        options = {"nvme": str(tmp_path)}
    alone = {key: each for key, each in options.items() if key not in ("nvme", "stage", "deferred")}
    model, optimizer = make(dtype, accumulation_steps=None, **alone)
    start = values(model)
    expected = train(model, optimizer, range(3), passes=passes or 1, alone_for=ranks)
    results = run(ranks, trains, dtype, passes, machines, options)
    for rank, (before, after, seen, places, on_device) in enumerate(results):
        assert same(before, start)
        assert same(after, values(model))
        every = ranks * (passes or 1)
        for step in range(3):
            losses = expected[step * (every + 1):][:every + 1]
            assert seen[step * ((passes or 1) + 1):][:(passes or 1) + 1] == [
                *losses[rank:-1:ranks], losses[-1]]
        assert places < 8 and on_device <= 800_000  # blocks computed on few slots of the device


# What programs write.

def writes(group, rank, deferred):
    model, optimizer = make(group=group, frozen=True, deferred=deferred)
    seen = train(model, optimizer, [0], rank, 2)
    start = copy.deepcopy(model.state_dict())
    seen += between(model, optimizer, start)
    seen += train(model, optimizer, [1], rank, 2)
    return values(model), seen[2:-2] + seen[-1:]


def between(model, optimizer, start):
    """Writes by an operation in place, by another tensor, by load_state_dict and by `.data`."""
    seen = []
    with torch.no_grad():
        for parameter in (model.blocks[1].outer, model.blocks[5].inner.weight, model.head.weight):
            parameter.mul_(0.5)
        model.blocks[6].inner.bias.data = model.blocks[6].inner.bias.data * 0.5
        seen.append(model(batch(3)).item())
        model.load_state_dict({name: each * 0.75 for name, each in start.items()})
        seen.append(model(batch(4)).item())
        model.blocks[3].norm.weight.data.add_(0.25)
        optimizer.values_changed(model.blocks[3].norm.weight)
        seen.append(model(batch(5)).item())
    return seen


@pytest.mark.parametrize("deferred", [False, True])
def test_what_each_rank_writes_is_written_once(run, deferred):
    model, optimizer = make(frozen=True, accumulation_steps=None)
    train(model, optimizer, [0], alone_for=2)
    start = copy.deepcopy(model.state_dict())
    expected = between(model, optimizer, start)
    expected.append(train(model, optimizer, [1], alone_for=2)[-1])
    for after, seen in run(2, writes, deferred):
        assert seen == expected
        assert same(after, values(model))


def writes_apart(group, rank, how):
    model, optimizer = make(group=group)
    with torch.no_grad():
        if how == "other values":
            model.blocks[2].outer.fill_(rank)
        elif how == "another order":
            outer = model.blocks[2].outer
            outer.copy_(outer.flip(0) if rank == 1 else outer)
        elif how == "other parameters":
            model.blocks[2 + rank].outer.fill_(1.0)
        elif rank == 0:
            model.blocks[2].outer.fill_(1.0)
    with pytest.raises(spillway.InvalidArgumentError) as error:
        train(model, optimizer, [0], rank, 2)
    return str(error.value)


@pytest.mark.parametrize("how, words", [
    ("other values", "has written other values"), ("other parameters", "has written"),
    ("another order", "has written other values"),
    ("one rank", "takes what the program has written into its parameter")])
def test_a_rank_that_writes_something_else_is_named(run, how, words):
    assert all(re.search(words, message) for message in run(2, writes_apart, how))


def writes_unnoticed(group, rank):
    model, optimizer = make(group=group)
    train(model, optimizer, [0], rank, 2)
    for block in model.blocks[3:5]:
        array = block.outer.detach().numpy()  # torch counts nothing there
        array *= 0.5
    if rank == 0:
        model.blocks[5].outer.detach().numpy()[0, 0] = 7.0
    train(model, optimizer, [1], rank, 2)
    return values(model)


def test_what_nobody_notices_goes_with_the_next_update(run):
    model, optimizer = make(accumulation_steps=None)
    train(model, optimizer, [0, 1], alone_for=2)
    for after in run(2, writes_unnoticed):
        assert same(after, values(model))


def writes_through_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def trains_and_writes_through_data(group, rank):
    model, optimizer = make(group=group)
    kept = model.blocks[2].outer.data if rank == 0 else None  # it is read there alone
    for number in range(2):
        train(model, optimizer, [number], rank, 2)
        assert kept is None or torch.isfinite(kept).all()
        writes_through_data(model)
    return values(model)


def test_what_all_ranks_write_through_data_is_written_once(run):
    model, optimizer = make(accumulation_steps=None)
    for number in range(2):
        train(model, optimizer, [number], alone_for=2)
        writes_through_data(model)
    for after in run(2, trains_and_writes_through_data):
        assert same(after, values(model))


def leaves_deferred(group, rank):
    model, optimizer = make(group=group, deferred=True)
    train(model, optimizer, [0], rank, 2)
    with pytest.warns(UserWarning, match="blocks may have the values after it.*load a checkpoint"):
        del optimizer
        gc.collect()


def test_a_deferred_update_that_goes_with_its_optimizer_says_what_it_leaves(run):
    run(2, leaves_deferred)


def stops_before_an_update(model, optimizer, rank=0, alone_for=1):
    """A pass that ends after three blocks, and goes on with the fourth after an update."""
    x = torch.ones(2, 128)
    for number in range(rank, rank + alone_for):
        model(batch(number)).backward()
    with torch.no_grad():
        for block in model.blocks[:3]:
            x = block(x)
        optimizer.step(divisor=alone_for)
        return model.blocks[3](x)


def stops(group, rank, deferred):
    return stops_before_an_update(*make(group=group, deferred=deferred), rank)


@pytest.mark.parametrize("deferred", [False, True])
def test_blocks_that_came_before_an_update_come_again(run, deferred):
    expected = stops_before_an_update(*make(accumulation_steps=2), alone_for=2)
    for result in run(2, stops, deferred):
        assert torch.equal(result, expected)


# State.

def saves(group, rank, folder, dtype):
    ranks = dist.get_world_size(group)
    model, optimizer = make(dtype, group)
    train(model, optimizer, range(2), rank, ranks)
    optimizer.save(folder)
    state = (model.state_dict(), optimizer.state_dict())
    state = copy.deepcopy(state) if rank == 0 else None
    train(model, optimizer, [2], rank, ranks)
    dist.barrier(group)
    # The same optimizer, and another one, go back to the step that was saved.
    optimizer.load(folder)
    train(model, optimizer, [2], rank, ranks)
    again = values(model)
    optimizer.close()
    assert same(again, values(model))
    model, optimizer = make(dtype, group, seed=5)
    optimizer.load(folder)
    train(model, optimizer, [2], rank, ranks)
    return state, again, values(model)


def loads_damage(group, rank, folder):
    model, optimizer = make(group=group)
    train(model, optimizer, [0], rank, 2)
    optimizer.save(folder)
    train(model, optimizer, [1], rank, 2)
    if rank == 1:
        for part in pathlib.Path(folder, "rank1").rglob("*.swap"):
            content = bytearray(part.read_bytes())
            content[len(content) // 2] ^= 255
            part.write_bytes(content)
    dist.barrier(group)
    with pytest.raises((spillway.CorruptDataError, spillway.InternalError)):
        optimizer.load(folder)
    with pytest.raises(spillway.CorruptDataError, match="was cut off"):
        train(model, optimizer, [2], rank, 2)


def test_no_rank_goes_on_where_the_part_of_one_is_damaged(run, tmp_path):
    run(2, loads_damage, str(tmp_path))


def loads(group, rank, state):
    ranks = dist.get_world_size(group)
    model, optimizer = make(BF16, group, seed=6)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    train(model, optimizer, [2], rank, ranks)
    return values(model)


def test_a_saved_state_goes_on_with_the_same_bits(run, tmp_path):
    results = run(2, saves, str(tmp_path), BF16)
    state = results[0][0]
    alone, optimizer = make(BF16, accumulation_steps=None, seed=7)
    alone.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    train(alone, optimizer, [2], alone_for=2)
    for _, again, of_another in results:
        assert same(again, values(alone)) and same(of_another, values(alone))
    for after in run(2, loads, state):
        assert same(after, values(alone))


def refuses(group, rank):
    model = model_of_blocks()
    offload_model(model, "10KB")
    with pytest.raises(spillway.DoesNotFitError, match="the largest unit has"):
        OffloadedAdamW(model.parameters(), process_group=group)
    with pytest.raises(spillway.NotSupportedError, match='missing="skip" with a process_group'):
        make(group=group, missing="skip")
    model = freeze(model_of_blocks())
    model.blocks[5].to(BF16 if rank == 1 else FP32)  # nobody trains it
    offload_model(model, BUDGET)
    with pytest.raises(spillway.InvalidArgumentError, match="ranks register different parameters"):
        OffloadedSGD(groups(model), process_group=group, lr=1.0)
    model = model_of_blocks()
    blocks = list(model.blocks)
    offload_model(model, BUDGET, blocks=blocks if rank == 1 else blocks[::2])
    with pytest.raises(spillway.InvalidArgumentError, match="ranks register different parameters"):
        OffloadedSGD(model.parameters(), process_group=group, lr=1.0)


def test_says_what_does_not_fit_and_what_differs(run):
    run(2, refuses)
