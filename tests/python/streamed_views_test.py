"""Memory in which a block's parameters are on the device: nothing has it once the block is over,
for another block's parameters come there."""
import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, offload_model


class Gives(torch.nn.Module):
    """A layer whose output is beside what `give` makes of the layer: in training, or `late` in the
    backward pass."""

    def __init__(self, give, late=lambda layer: None):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)
        self.give, self.late = give, late

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        y.register_hook(lambda _: self.late(self.layer))
        return torch.tanh(y @ self.layer.weight), self.give(self.layer)


class GivesAll(torch.nn.Module):
    def __init__(self, *ways):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = torch.nn.ModuleList(Gives(*ways) for _ in range(4))

    def forward(self, x):
        given = []
        for block in self.blocks:
            x, value = block(x)
            given.append(value)
        return x.square().mean() + sum(value.square().sum() for value in given)


def gives(*ways, streamed=True, **options):
    model = GivesAll(*ways)
    if streamed:
        offload_model(model, "40KiB")
    return model, OffloadedAdamW(model.parameters(), lr=1e-2, **options)


def train_giving(model, optimizer, steps=3):
    for step in range(steps):
        model(torch.randn(3, 32, generator=torch.Generator().manual_seed(step))).backward()
        optimizer.step()
        optimizer.zero_grad()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("give", [
    lambda layer: layer.weight.diagonal(), lambda layer: layer.bias.view(-1),
    lambda layer: layer.weight.detach(), lambda layer: layer.bias.data])
def test_a_view_of_a_parameter_that_leaves_its_block_is_refused(give):
    model, _ = gives(give)
    with pytest.raises(spillway.NotSupportedError, match=r"block 0 has returned or kept .*blocks"):
        train_giving(model, None, 1)
    streamed, optimizer = gives(lambda layer: give(layer).clone())
    resident, other = gives(give, streamed=False)
    train_giving(streamed, optimizer)
    train_giving(resident, other)
    assert same(streamed, resident)


@pytest.mark.parametrize("give", [
    lambda layer: layer.weight, lambda layer: layer.weight.diagonal() * 2, "a cycle"])
def test_a_parameter_itself_and_what_is_computed_of_it_may_leave_its_block(give):
    def in_a_cycle(layer):
        cycle = [layer.weight.detach()]
        cycle.append(cycle)
        return layer.bias * 2

    models = [gives(in_a_cycle if give == "a cycle" else give, streamed=streamed)
              for streamed in (True, False)]
    for model, optimizer in models:
        train_giving(model, optimizer)
    assert same(models[0][0], models[1][0])


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("block", range(4))
def test_memory_of_a_block_that_a_hook_keeps_is_refused_and_the_loop_goes_on(when, block):
    kept = []
    model, optimizer = gives(lambda layer: layer.bias * 2)
    expected, other = gives(lambda layer: layer.bias * 2, streamed=False)
    if when == "forward":
        hook = model.blocks[block].layer.register_forward_hook(
            lambda layer, *_: kept.append(layer.weight.detach()))
    else:
        model.blocks[block].late = lambda layer: kept.append(layer.weight.detach())
    with pytest.raises(spillway.NotSupportedError, match=f"block {block} has returned or kept"):
        train_giving(model, optimizer, 1)
    if when == "forward":
        hook.remove()
    else:
        model.blocks[block].late = lambda layer: None
    optimizer.zero_grad()
    train_giving(model, optimizer)
    train_giving(expected, other)
    assert same(model, expected)


def test_memory_that_is_kept_holds_neither_the_state_nor_its_folder(tmp_path):
    kept = []
    model, optimizer = gives(lambda layer: layer.bias * 2, nvme=tmp_path)
    hook = model.blocks[1].layer.register_forward_hook(
        lambda layer, *_: kept.append(layer.weight.detach()))
    with pytest.raises(spillway.NotSupportedError, match="block 1 has returned or kept"):
        train_giving(model, optimizer, 1)
    hook.remove()
    optimizer.close()
    assert not list(tmp_path.rglob("*.swap"))
    second, other = gives(lambda layer: layer.bias * 2, nvme=tmp_path)
    assert [path.parent for path in tmp_path.rglob("*.swap")] == [tmp_path]
    train_giving(second, other)
    assert kept[0].isfinite().all()  # in memory that is there still
    resident, third = gives(lambda layer: layer.bias * 2, streamed=False)
    train_giving(resident, third)
    assert same(second, resident)
