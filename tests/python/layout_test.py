"""Parameters that lie in memory as channels_last keep their strides, and train as torch trains
them."""
import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, offload_model

STEPS = 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Tanh())
            for _ in range(4))
        self.head = torch.nn.Conv2d(4, 1, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


def net(memory_format=torch.channels_last):
    torch.manual_seed(3)
    return Net().to(memory_format=memory_format)


def images(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 4, 6, 6, generator=generator).to(memory_format=torch.channels_last)


def train(model, optimizer, steps=range(STEPS)):
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = model(images(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def strides(model):
    return [parameter.stride() for parameter in model.parameters()]


def test_strides_stay_and_training_is_that_of_torch():
    ours, theirs = net(), net()
    assert strides(ours) != strides(net(torch.contiguous_format))
    optimizers = (OffloadedAdamW(ours.parameters(), lr=1e-3),
                  torch.optim.AdamW(theirs.parameters(), lr=1e-3))
    assert strides(ours) == strides(theirs)
    losses = [train(*each) for each in zip((ours, theirs), optimizers, strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert strides(ours) == strides(theirs)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for number, parameter in enumerate(theirs.parameters()):
        for name in ("exp_avg", "exp_avg_sq"):
            mine, other = states[0][number][name], states[1][number][name]
            assert torch.allclose(mine, other, rtol=1e-3, atol=1e-9)
            assert mine.stride() == parameter.stride()


def test_a_state_of_torch_goes_on_here():
    ours, theirs = net(), net()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    train(theirs, optimizer)
    ours.load_state_dict(theirs.state_dict())
    mine = OffloadedAdamW(ours.parameters(), lr=1e-3)
    mine.load_state_dict(optimizer.state_dict())
    more = range(STEPS, 2 * STEPS)
    assert train(ours, mine, more) == pytest.approx(train(theirs, optimizer, more), rel=1e-5)


def test_a_checkpoint_goes_on_in_its_own_order_alone(tmp_path):
    model = net()
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-3)
    train(model, optimizer)
    optimizer.save(tmp_path / "checkpoint")
    again = net()
    loaded = OffloadedAdamW(again.parameters(), lr=1e-3)
    loaded.load(tmp_path / "checkpoint")
    for mine, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, other)
    other = OffloadedAdamW(net(torch.contiguous_format).parameters(), lr=1e-3)
    with pytest.raises(spillway.InvalidArgumentError, match="memory order"):
        other.load(tmp_path / "checkpoint")


@pytest.mark.parametrize("nvme", [False, True])
def test_blocks_that_are_streamed_have_the_bits_of_resident_ones(tmp_path, nvme):
    runs = []
    for streamed in (False, True):
        model = net()
        if streamed:
            offload_model(model, 12 * 4096 * 4)
        options = {"nvme": tmp_path} if nvme else {}
        optimizer = OffloadedAdamW(model.parameters(), lr=1e-3, **options)
        losses = train(model, optimizer)
        runs.append((losses, [p.detach().clone() for p in model.parameters()], strides(model)))
        optimizer.close()
    assert runs[0][0] == runs[1][0]
    assert runs[0][2] == runs[1][2]
    for mine, other in zip(runs[0][1], runs[1][1], strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("values", [torch.ones(1).expand(4),
                                    torch.randn(10).as_strided((4, 4), (1, 1))])
def test_elements_in_the_same_memory_are_refused(values):
    with pytest.raises(spillway.NotSupportedError, match="parameter 0 of group 0 lie in the same"):
        OffloadedAdamW([torch.nn.Parameter(values)])


def test_strided_views_are_taken():
    for values in (torch.randn(10)[::2], torch.randn(5, 7).t(), torch.randn(4, 5)[:, 1:3]):
        parameter, other = torch.nn.Parameter(values), torch.nn.Parameter(values.clone())
        for each, kind in ((parameter, OffloadedAdamW), (other, torch.optim.AdamW)):
            optimizer = kind([each], lr=0.1)
            each.square().sum().backward()
            optimizer.step()
        assert torch.allclose(parameter, other, atol=1e-6)
