"""The optimizers of spillway.torch on ranks of torch.distributed (gloo).

A step has MICRO_BATCHES micro-batches, whatever the number of ranks: micro-batch m of rank r of N
is number m * N + r. One process that adds them all up is the oracle, and ranks have its bits.
"""
import os
import re

import pytest
import torch
import torch.distributed as dist
from rank_processes import ranks_at

import spillway
from spillway.torch import OffloadedAdagrad, OffloadedAdamW, OffloadedSGD

MICRO_BATCHES = 6
# The first is cut for every number of ranks, the last ones share a leaf's worth of memory.
SHAPES = ((100, 190), (70, 60), (257,), (3, 5, 7), (1,))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


def parameters(dtypes=(torch.float32,), seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtypes[i % len(dtypes)]))
            for i, shape in enumerate(SHAPES)]


def groups(tensors):
    return [{"params": tensors[:2]}, {"params": tensors[2:], "weight_decay": 0.0, "lr": 1e-3}]


def give_gradients(tensors, step, number, backwards=False):
    """Gradients of a micro-batch, in one order or the other."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    gradients = [torch.randn(tensor.shape, generator=generator) * 10.0 ** (step % 3 - 2)
                 for tensor in tensors]
    pairs = list(zip(tensors, gradients, strict=True))
    loss = 0
    for tensor, gradient in reversed(pairs) if backwards else pairs:
        loss = loss + (tensor * gradient.to(tensor.dtype)).sum().float()
    loss.backward()


def bits(tensors):
    return [tensor.detach().clone() for tensor in tensors]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def take_steps(tensors, optimizer, steps, rank=0, ranks=1):
    norms = []
    for step in steps:
        optimizer.zero_grad()
        for m in range(MICRO_BATCHES // ranks):
            give_gradients(tensors, step, m * ranks + rank, backwards=rank % 2 == 1)
        optimizer.step(divisor=MICRO_BATCHES / ranks)
        norms.append(optimizer.grad_norm)
    return bits(tensors), norms


def make(tensors, kind=OffloadedAdamW, group=None, ranks=1, **options):
    if group is not None:
        options["process_group"] = group
    return kind(groups(tensors), lr=3e-3, accumulation_steps=MICRO_BATCHES // ranks, threads=1,
                **options)


def on_a_rank(group, rank, dtypes, kind, stage, steps, options):
    ranks = dist.get_world_size(group)
    tensors = parameters(dtypes, seed=1 + rank)  # they begin as those of the first rank
    optimizer = make(tensors, kind, group, ranks, stage=stage, **options)
    return take_steps(tensors, optimizer, range(steps), rank, ranks)


BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind, dtypes, options", [
    (OffloadedAdamW, (FP32,), {"max_norm": 0.5}), (OffloadedAdamW, (BF16,), {"max_norm": 0.5}),
    (OffloadedAdamW, (BF16,), {"state_format": "split"}),
    (OffloadedAdamW, (BF16,), {"state_format": "int8"}),
    (OffloadedAdamW, (BF16, FP32), {"max_norm": 0.5}), (OffloadedAdagrad, (FP32,), {})])
def test_ranks_have_the_bits_of_one_process(run, ranks, kind, dtypes, options):
    tensors = parameters(dtypes)
    expected, norms = take_steps(tensors, make(tensors, kind, **options), range(4))
    for values, same_norms in run(ranks, on_a_rank, dtypes, kind, 2, 4, options):
        assert equal(values, expected)
        assert same_norms == norms


def in_stage_1(group, rank, says_how_many):
    ranks = dist.get_world_size(group)
    # Two leaves: the last of three ranks has padding alone.
    tensors = [torch.nn.Parameter(torch.ones(1000)), torch.nn.Parameter(torch.ones(7))]
    optimizer = OffloadedSGD(tensors, lr=0.5, process_group=group, stage=1,
                             accumulation_steps=MICRO_BATCHES // ranks if says_how_many else None,
                             max_norm=100.0)
    for number in range(rank, MICRO_BATCHES, ranks):
        assert all((tensor.grad is None) == (number == rank) for tensor in tensors)
        for tensor in tensors:
            (tensor * (number + 1)).sum().backward()
    assert optimizer._rounds.passes == says_how_many, "sums leave in the last pass, or in the step"
    optimizer.step()
    assert not any(shard._waiting for shard in optimizer._shards), "sums stay after the step"
    return bits(tensors), optimizer.grad_norm


@pytest.mark.parametrize("says_how_many", [True, False])
def test_stage_1_exchanges_sums_of_all_passes(run, says_how_many):
    # Whole numbers, whose sums are exact in any order.
    for ranks in (1, 2, 3):
        total = sum(range(1, MICRO_BATCHES + 1)) / ranks
        norm = total * 1007 ** 0.5
        for values, grad_norm in run(ranks, in_stage_1, says_how_many):
            assert grad_norm == pytest.approx(norm, rel=1e-15)
            for value in values:
                assert torch.allclose(value, torch.tensor(1 - 0.5 * total * min(1, 100 / norm)),
                                      rtol=1e-6)
                assert torch.equal(value, value[0].expand(value.shape))


def one_needs_gradients_later(group, rank):
    tensors = [torch.nn.Parameter(torch.zeros(5000)), torch.nn.Parameter(torch.zeros(7))]
    tensors[1].requires_grad_(False)
    optimizer = OffloadedSGD(tensors, lr=1.0, process_group=group)
    for _ in range(3):
        give([tensor for tensor in tensors if tensor.requires_grad], rank + 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tensors[1].requires_grad_(True)
    return bits(tensors)


def test_a_parameter_that_needs_gradients_later_joins(run):
    # It is smaller than a leaf, so that one rank has nothing of it.
    expected = [torch.full((5000,), -4.5), torch.full((7,), -3.0)]
    for values in run(2, one_needs_gradients_later):
        assert equal(values, expected)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(40, 64)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        self.head = torch.nn.Linear(64, 40)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        wanted = (7 * tokens + 1) % 40
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


def batch(step):
    return torch.randint(40, (6, 16), generator=torch.Generator().manual_seed(step))


def beside_ddp(group, rank, stage):
    """Losses of a model with our optimizer, and of one with DDP and torch's."""
    ours, theirs = Net(), Net()
    wrapped = torch.nn.parallel.DistributedDataParallel(theirs, process_group=group)
    optimizer = OffloadedAdamW(ours.parameters(), lr=1e-2, max_norm=1.0, process_group=group,
                               stage=stage)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    losses = []
    for step in range(15):
        own = batch(step).chunk(dist.get_world_size(group))[rank]
        loss, other = ours(own), wrapped(own)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.zero_grad()
        other.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
        assert optimizer.grad_norm == pytest.approx(float(norm), rel=1e-3)
        losses.append((loss.item(), other.item()))
    return losses, bits(ours.parameters())


@pytest.mark.parametrize("stage", [1, 2])
def test_trajectory_is_that_of_ddp_and_of_one_process_with_the_whole_batch(run, stage):
    whole = Net()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    expected = []
    for step in range(15):
        optimizer.zero_grad()
        loss = whole(batch(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    results = run(2, beside_ddp, stage)
    assert equal(results[0][1], results[1][1])
    for step, loss in enumerate(expected):
        # Feedback through the loss carries roundings on; 1e-4 is 0.003 % of these losses.
        means = [sum(losses[step][which] for losses, _ in results) / 2 for which in (0, 1)]
        assert means == pytest.approx([loss, loss], abs=1e-4)
    assert expected[-1] < expected[0] - 0.5


def begin_and_save(group, rank, folder):
    tensors = parameters((BF16,))
    optimizer = make(tensors, group=group, ranks=2, nvme=[folder])
    take_steps(tensors, optimizer, range(2), rank, 2)
    optimizer.save(folder / "saved")
    state = optimizer.state_dict()
    assert bool(state["state"]) == (rank == 0)
    if rank == 0:
        torch.save(state, folder / "state.pt")


def go_on(group, rank, folder, saved):
    ranks = dist.get_world_size(group)
    tensors = parameters((BF16,), seed=9)
    optimizer = make(tensors, group=group, ranks=ranks)
    if saved:
        optimizer.load(folder / "saved")
    else:
        optimizer.load_state_dict(torch.load(folder / "state.pt", mmap=True))
    loaded = bits(tensors)
    return loaded, take_steps(tensors, optimizer, range(2, 4), rank, ranks)[0]


def test_state_goes_on_with_other_numbers_of_ranks_and_checkpoints_with_the_same(run, tmp_path):
    tensors = parameters((BF16,))
    optimizer = make(tensors)
    half, _ = take_steps(tensors, optimizer, range(2))
    expected, _ = take_steps(tensors, optimizer, range(2, 4))
    run(2, begin_and_save, tmp_path)
    for ranks, saved in ((2, True), (3, False), (1, False)):
        for loaded, values in run(ranks, go_on, tmp_path, saved):
            assert equal(loaded, half), "all ranks have all parameters at once"
            assert equal(values, expected)
    alone = parameters((BF16,), seed=9)
    optimizer = make(alone)
    optimizer.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert equal(take_steps(alone, optimizer, range(2, 4))[0], expected)


def memory_of_state(group, rank):
    tensors = [torch.nn.Parameter(torch.ones(4096 * 600))] + parameters()
    optimizer = OffloadedAdamW(tensors, **({"process_group": group} if group else {}))
    items = [item for shard in optimizer._shards for item in shard.trainer.memory()]
    return sum(bytes_ for _, what, bytes_ in items if what in ("optimizer state", "gradients"))


def test_a_rank_keeps_its_part_of_state_and_gradients(run):
    whole = memory_of_state(None, 0)
    assert whole > 4096 * 600 * 12
    for ranks in (2, 3):
        # Each parameter and each part begins on a leaf of 4096 elements; sums of gradients of
        # several ranks are as wide as those of one in fp32.
        padding = 4096 * 16 * (len(SHAPES) + 2)
        for own in run(ranks, memory_of_state):
            assert own == pytest.approx(whole / ranks, abs=padding)


def raised(call):
    with pytest.raises(spillway.Error) as error:
        call()
    return f"{type(error.value).__name__}: {error.value}"


def give(tensors, value=1.0, which=slice(None)):
    for tensor in tensors[which]:
        (tensor.sum() * value).backward()


def meet_trouble(group, rank):
    """What every rank is told, and whether it can go on."""
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, process_group=group)
    before = bits(tensors)
    give(tensors, which=slice(2) if rank else slice(None))
    told = [raised(optimizer.step)]
    give(tensors, float("inf") if rank else 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.skipped_steps == 1 and equal(tensors, before)
    give(tensors)
    optimizer.param_groups[0]["lr"] *= 1 + rank
    told.append(raised(optimizer.step))
    optimizer.param_groups[0]["lr"] = 1e-3
    optimizer.zero_grad()
    give(tensors)
    optimizer.step()
    assert not equal(tensors, before)
    zero = OffloadedAdamW(parameters(), missing="zero", process_group=group)
    give(zero.param_groups[0]["params"], which=slice(rank, None))
    zero.step()
    told += [raised(lambda: OffloadedAdamW(parameters()[rank:], process_group=group)),
             raised(lambda: OffloadedAdamW(parameters()[:: 1 - 2 * rank], process_group=group)),
             raised(lambda: OffloadedAdamW(parameters(), process_group=group, stage=3)),
             raised(lambda: OffloadedAdamW(parameters(), process_group=group, stage=1 + rank)),
             raised(lambda: OffloadedAdamW(parameters(), process_group=group,
                                           accumulation_steps=1 + rank))]
    uneven = OffloadedAdamW(parameters(), process_group=group, stage=1, accumulation_steps=None)
    for _ in range(1 + rank):
        give(uneven.param_groups[0]["params"])
    told.append(raised(uneven.step))
    return told, bits(zero.param_groups[0]["params"])


def test_ranks_are_told_alike_and_go_on(run):
    (first, values), (second, others) = run(2, meet_trouble)
    assert equal(values, others)
    words = ["parameter 2 of group 0 has fewer than the 1 gradient.* on rank 1",
             "hyperparameters", "rank . registers [45] parameters, and rank",
             r"ranks register different parameters.*\(100, 190\)", "stage is 3",
             "stage of the optimizer is", "accumulation_steps of the optimizer is",
             "steps before, backward passes, what"]
    for word, *told in zip(words, first, second, strict=True):
        assert all(re.search(word, text) for text in told), told


def skip_a_step(group, rank):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, process_group=group, accumulation_steps=None)
    give(tensors)

    def go_on():
        if rank == 0:
            optimizer.step()
        give(tensors)
        optimizer.step()

    return raised(go_on)


def test_a_rank_that_skips_a_step_is_named(run):
    for told in run(2, skip_a_step):
        assert "rank 1 begins backward pass 2 of a step" in told
        assert "rank 0 calls step" in told


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(spillway.InvalidArgumentError, match="init_process_group first"):
        OffloadedAdamW(parameters(), process_group=dist.group.WORLD)


def one_ends(group, rank):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, process_group=group)
    if rank == 2:
        os._exit(0)

    def go_on():
        give(tensors)
        optimizer.step()

    return raised(go_on)


def test_ranks_are_told_when_one_of_them_ends(run):
    *told, _ = run(3, one_ends)  # the processes are of no use to other tests then
    assert all(re.search("could not exchange with the other ranks .*start all of them", text)
               for text in told), told
