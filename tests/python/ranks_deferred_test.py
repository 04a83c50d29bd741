"""Deferred updates of ranks: new values are exchanged when a forward pass waits for them, and the
bits are those of updates that `step` waits for."""
import pytest
import torch
import torch.distributed as dist
from rank_processes import ranks_at
from ranks_test import Net, batch, bits, equal, raised

from spillway.torch import OffloadedAdamW


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


class Tied(Net):
    """Uses weights of a submodule that it does not call, beside those that it calls."""

    def forward(self, tokens):
        return super().forward(tokens) + self.layers[0].weight.square().mean() + (
            self.embedding.weight.mean())


def make(group, kind=Net, deferred=True, **options):
    net = kind()
    optimizer = OffloadedAdamW(net.parameters(), lr=1e-2, process_group=group,
                               deferred=net if deferred else None, **options)
    return net, optimizer


def train(group, rank, kind, stage, passes, deferred):
    net, optimizer = make(group, kind, deferred, stage=stage, accumulation_steps=passes)
    size, losses = dist.get_world_size(group), []
    for step in range(4):
        for part in range(passes):
            loss = net(batch(10 * step + part).chunk(size)[rank])
            loss.backward()
            losses.append(loss.item())
        if step % 2:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if deferred:
            assert any(shard.is_deciding(0) for shard in optimizer._shards)
        optimizer.zero_grad()
        if step == 2:
            optimizer.state_dict()
    saved = {name: values.clone() for name, values in net.state_dict().items()}
    assert not any(shard.is_deciding(0) for shard in optimizer._shards), "state_dict has waited"
    return losses, list(saved.values()), bits(net.parameters())


@pytest.mark.parametrize("ranks, kind, stage, passes", [
    (2, Net, 2, 1), (2, Net, 1, 2), (3, Net, 2, 2), (2, Tied, 2, 1)])
def test_deferred_updates_of_ranks_have_the_bits_of_others(run, ranks, kind, stage, passes):
    found = [run(ranks, train, kind, stage, passes, deferred) for deferred in (True, False)]
    for mine, reference in zip(*found, strict=True):
        assert mine[0] == reference[0], "losses"
        assert equal(mine[1], reference[1]) and equal(mine[2], reference[2])


def wait_at_once(group, rank, deferred):
    """An update that takes longer than the first exchange after it."""
    net, optimizer = make(group, lambda: torch.nn.Linear(2000, 2000, bias=False), deferred,
                          threads=1, isa="scalar")
    with torch.no_grad():
        net.weight.fill_(0.5)
    for _ in range(2):
        net(torch.full((1, 2000), rank + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.synchronize()
    return net.weight.detach().unique().tolist()


def test_values_are_exchanged_after_the_update_that_is_under_way(run):
    found = [run(2, wait_at_once, deferred) for deferred in (True, False)]
    assert found[0] == found[1] and len(found[0][0]) == 1


def write_and_end(group, rank, folder):
    """What becomes of writes beside an update, of checkpoints, and of parameters in the end."""
    net, optimizer = make(group)

    def step():
        net(batch(0).chunk(2)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()

    old = bits(net.parameters())
    step()
    with torch.no_grad():
        net.head.weight.mul_(2)  # waits, as what reads does
    written = net.head.weight.detach().clone()
    optimizer.synchronize()
    assert torch.equal(net.head.weight, written)
    step()
    read = net.layers[0].weight.detach().clone()
    optimizer.synchronize()
    assert torch.equal(net.layers[0].weight, read) and not equal(bits(net.parameters()), old)
    with torch.no_grad():
        net.head.weight.zero_()
    step()
    optimizer.save(folder)
    before = bits(net.parameters())
    assert not torch.equal(net.head.weight, torch.zeros_like(net.head.weight))
    step()
    optimizer.load(folder)
    assert equal(bits(net.parameters()), before)
    step()
    optimizer.close()
    assert not equal(bits(net.parameters()), before), "close has waited"
    after = bits(net.parameters())
    net, optimizer = make(group)
    step()
    with pytest.warns(UserWarning, match="gone with a deferred update.*synchronize"):
        del optimizer
    return after


def test_what_is_done_beside_a_deferred_update_waits_for_it(run, tmp_path):
    values, others = run(2, write_and_end, tmp_path / "saved")
    assert equal(values, others)


def wait_in_another_order(group, rank):
    net, optimizer = make(group)

    def go_on():
        for _ in range(2):
            net(batch(0).chunk(2)[rank]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                net.head(torch.ones(1, 64))

    return raised(go_on)


def test_a_rank_that_waits_for_other_parameters_is_named(tmp_path):
    with ranks_at(tmp_path / "store") as run:
        told = run(2, wait_in_another_order)
    assert "rank 0 waits for deferred updates of part 1 of its parameters" in told[1]
    assert "rank 1 waits for deferred updates of part 0 of its parameters" in told[0]
