"""Gradients that the optimizer has: what a program drops is dropped, and clips of torch and of ours
agree."""
import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, offload_model


def network(seed=0, blocks=3, width=8):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(blocks)))


def batch(step, width=8):
    return torch.randn(4, width, generator=torch.Generator().manual_seed(step))


def near(some, others, bound=1e-5):
    return all(float((a.detach() - b.detach()).abs().max()) < bound
               for a, b in zip(some.parameters(), others.parameters(), strict=True))


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some.parameters(), others.parameters(),
                                                 strict=True))


def drop_none(net, _optimizer):
    for parameter in net.parameters():
        parameter.grad = None


DROPS = {
    "module": lambda net, _: net.zero_grad(),
    "module in place": lambda net, _: net.zero_grad(set_to_none=False),
    "None": drop_none,
    "optimizer": lambda _, optimizer: optimizer.zero_grad(),
}


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("steps, streamed", [(1, False), (None, False), (None, True)])
def test_a_discriminator_learns_from_its_own_loss_alone(drop, steps, streamed):
    nets = []
    for ours in (True, False):
        generator, critic = network(1), network(2)
        if ours and streamed:
            offload_model(critic, "200KB")
        kind = OffloadedSGD if ours else torch.optim.SGD
        options = {"accumulation_steps": steps} if ours else {}
        optimizers = [kind(net.parameters(), lr=0.1, **options) for net in (generator, critic)]
        for step in range(4):
            optimizers[0].zero_grad()
            critic(generator(batch(step))).square().mean().backward()
            optimizers[0].step()
            DROPS[drop](critic, optimizers[1])
            passes = 1 if steps == 1 else 2
            for part in range(passes):
                (critic(batch(10 + step + part)) - 1).square().mean().backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
        nets.append((generator, critic))
    assert near(nets[0][0], nets[1][0])
    assert near(nets[0][1], nets[1][1])


@pytest.mark.parametrize("steps", [1, None])
def test_a_batch_whose_gradients_were_dropped_is_no_step(steps):
    net = network()
    optimizer = OffloadedAdamW(net.parameters(), accumulation_steps=steps, missing="refuse")
    net(batch(0)).sum().backward()
    net.zero_grad()
    with pytest.raises(spillway.InvalidArgumentError, match=r"has 0 of the 1 gradients"):
        optimizer.step()
    net(batch(1)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("steps", [2, None])
def test_gradients_of_some_parameters_may_be_dropped_or_replaced(steps):
    nets = []
    for kind, options in ((OffloadedSGD, {"accumulation_steps": steps}), (torch.optim.SGD, {})):
        net = network()
        optimizer = kind(net.parameters(), lr=0.1, **options)
        net(batch(0)).square().mean().backward()
        net[1].weight.grad = None
        net[1].bias.grad = torch.ones(8)
        net(batch(1)).square().mean().backward()
        optimizer.step()
        nets.append(net)
    assert near(*nets)


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}",
                                         rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("asked", ["option", "call", "unscaled"])
def test_torchs_clip_beside_one_of_ours_to_the_same_norm_changes_nothing(asked):
    ours, theirs = network(), network()
    options = {"max_norm": 0.1} if asked == "option" else {}
    mine = OffloadedSGD(ours.parameters(), lr=0.1, **options)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(3):
        for net in (ours, theirs):
            net.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=asked == "unscaled")
        scaler.scale(ours(batch(step)).square().mean()).backward()
        theirs(batch(step)).square().mean().backward()
        if asked == "unscaled":
            scaler.unscale_(mine)
            mine.clip_grad_norm_(0.1, scaler)
        elif asked == "call":
            mine.clip_grad_norm_(0.1)
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        scaler.step(mine)
        reference.step()
        for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-5, atol=1e-6)
    assert near(ours, theirs)


def test_gradients_of_others_are_clipped_as_usual():
    net, other = network(), network(1)
    OffloadedAdamW(net.parameters(), max_norm=1.0)
    for each in (net, other):
        each(batch(0)).square().mean().backward()
    values = [parameter.grad.clone() for parameter in other.parameters()]
    torch.nn.utils.clip_grad_value_([*net.parameters(), *other.parameters()], 1e-3)
    for parameter, value in zip(other.parameters(), values, strict=True):
        assert torch.equal(parameter.grad, value.clamp(-1e-3, 1e-3))


def test_what_stands_for_a_gradient_takes_no_memory_and_goes_with_the_optimizer(group_of_one):
    net = network()
    gradient, = torch.autograd.grad(net(batch(0)).sum(), net[0].weight)
    optimizer = OffloadedAdamW(net.parameters(), process_group=group_of_one, stage=2)
    net(batch(0)).sum().backward()
    with pytest.raises(RuntimeError, match="invalid python storage"):
        torch.Tensor.untyped_storage(net[0].weight.grad).data_ptr()
    optimizer.zero_grad()
    assert [parameter.grad for parameter in net.parameters()] == [None] * 6
    del optimizer
    net(batch(0)).sum().backward()
    assert torch.equal(net[0].weight.grad, gradient)
