"""What programs do to parameters, gradients and checkpoints of ranks: it counts, or is refused on
all of them."""
import re

import pytest
import torch
from rank_processes import ranks_at
from ranks_test import bits, equal, give, make, parameters, raised, take_steps

from spillway.torch import OffloadedSGD


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


def write_through_data(group, rank):
    tensors = [torch.nn.Parameter(torch.full((size,), 2.0, dtype=torch.bfloat16))
               for size in (5000, 7)]
    optimizer = OffloadedSGD(tensors, lr=1.0, process_group=group)
    for _ in range(2):
        give(tensors, rank + 1.0)
        optimizer.step()
        optimizer.zero_grad()
        for tensor in tensors:
            tensor.data.sub_(0.25)
    masters = [state["master"] for state in optimizer.state_dict()["state"].values()]
    give(tensors, rank + 1.0)
    optimizer.step()
    return bits(tensors), masters


def test_what_is_written_through_data_counts_in_the_next_step(run):
    # Each step takes 1.5, and each write 0.25.
    (values, masters), (others, _) = run(2, write_through_data)
    assert all((tensor == 2 - 3 * 1.5 - 2 * 0.25).all() for tensor in (*values, *others))
    assert all((tensor == 2 - 2 * 1.5 - 2 * 0.25).all() for tensor in masters)


def drop_a_sum(group, rank, missing):
    tensors = [torch.nn.Parameter(torch.ones(5000)), torch.nn.Parameter(torch.ones(7))]
    optimizer = OffloadedSGD(tensors, lr=1.0, process_group=group, stage=1, missing=missing,
                             accumulation_steps=None)
    give(tensors)
    if rank == 1:
        tensors[1].grad = None
    told = None
    if missing == "refuse":
        told = raised(optimizer.step)
        give(tensors)
    optimizer.clip_grad_norm_(1e3)
    optimizer.step()
    return told, [tensor.unique().tolist() for tensor in bits(tensors)]


def test_a_sum_that_the_program_drops_is_missing(run):
    for told, values in run(2, drop_a_sum, "refuse"):
        assert "parameter 1 of group 0 has fewer than the 1 gradient(s) of this step" in told
        assert values == [[0.0], [0.0]]
    for _, values in run(2, drop_a_sum, "zero"):
        assert values == [[0.0], [0.5]]


def load_what_a_kill_has_left(group, rank, folder):
    tensors = parameters()
    optimizer = make(tensors, group=group, ranks=2)
    take_steps(tensors, optimizer, [0], rank, 2)
    for name in ("whole", "killed"):
        optimizer.save(folder / name)
    take_steps(tensors, optimizer, [1], rank, 2)
    if rank == 0:  # the other one was killed before
        optimizer.save(folder / "killed")
    before = bits(tensors)
    told = [raised(lambda: optimizer.load(folder / "killed")), raised(optimizer.step)]
    assert equal(tensors, before)
    optimizer.load(folder / "whole")
    return told, bits(tensors)


def test_what_a_kill_between_two_ranks_has_left_is_refused(run, tmp_path):
    tensors = parameters()
    expected, _ = take_steps(tensors, make(tensors), [0])
    for rank, (told, values) in enumerate(run(2, load_what_a_kill_has_left, tmp_path)):
        assert f"{rank} is of step {2 - rank}, and what rank {1 - rank} has loaded of" in told[0]
        assert re.match("CorruptDataError: .*load.* was cut off", told[1])
        assert equal(values, expected)


def write_on_one_rank(group, rank):
    tensors = parameters()
    optimizer = OffloadedSGD(tensors, lr=1.0, process_group=group)
    give(tensors)
    optimizer.step()
    optimizer.zero_grad()
    before = bits(tensors)

    def double(writer):
        with torch.no_grad():
            if rank == writer:
                tensors[0].mul_(2)

    double(1)
    give(tensors)
    told = raised(optimizer.step)
    double(0)
    optimizer.zero_grad()
    give(tensors)
    optimizer.step()
    return told, before, bits(tensors)


def test_what_one_rank_alone_writes_is_refused_until_the_others_do(run):
    for told, before, after in run(2, write_on_one_rank):
        assert "what the program did to p.grad and to parameters" in told
        assert not equal(before, after)
