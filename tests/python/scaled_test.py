"""torch.amp.GradScaler: a gradient that it has found not to be finite skips the step, whatever
becomes of its values before."""
import math

import pytest
import torch

from spillway.torch import OffloadedAdamW, OffloadedSGD, offload_model

KINDS = {"sgd": (OffloadedSGD, torch.optim.SGD), "adamw": (OffloadedAdamW, torch.optim.AdamW)}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))


def loss_of(net, number):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
    return net(x).square().mean()


def overflow(value):
    """A hook that makes one element of a gradient a value that is not finite."""
    return lambda gradient: gradient.index_put((torch.tensor([0]), torch.tensor([1])),
                                               torch.tensor(value))


def each(change):
    return lambda net: [change(parameter) for parameter in net.parameters()]


def without_nan(parameter):
    torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)


def drop_what_is_not_finite(net):
    for parameter in net.parameters():
        if not parameter.grad.isfinite().all():
            parameter.grad = None


def zero_what_is_not_finite(net):
    for parameter in net.parameters():
        if not parameter.grad.isfinite().all():
            parameter.grad.zero_()


def replace_the_first(net):
    net[0].weight.grad = torch.full((8, 8), 0.01)


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)


REPAIRS = {
    "nothing": lambda net: None,
    "clamped": lambda net: torch.nn.utils.clip_grad_value_(net.parameters(), 0.1),
    "nan_to_num": each(without_nan),
    "zeroed": zero_what_is_not_finite,
    "all zeroed": each(lambda parameter: parameter.grad.zero_()),
    "dropped": drop_what_is_not_finite,
    "replaced": replace_the_first,
    "clip": clip,
}


def run(net, optimizer, repair, value, unscales=True):
    """Three steps, the second of which overflows; returns the scale after each."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    scales = []
    for number in range(3):
        optimizer.zero_grad()
        handle = net[0].weight.register_hook(overflow(value)) if number == 1 else None
        scaler.scale(loss_of(net, number)).backward()
        if handle is not None:
            handle.remove()
        if unscales:
            scaler.unscale_(optimizer)
            repair(net)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("repair", REPAIRS)
def test_an_overflow_that_is_repaired_after_unscale_skips_the_step(repair, value, kind):
    nets, scales = [], []
    for make in KINDS[kind]:
        net = network()
        optimizer = make(net.parameters(), lr=0.01)
        scales.append(run(net, optimizer, REPAIRS[repair], value))
        nets.append(net)
    assert scales[0] == scales[1] == [128.0, 64.0, 128.0]
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"accumulation_steps": None}, {"max_norm": 0.5},
                                     {"missing": "refuse"}])
@pytest.mark.parametrize("streamed", [False, True])
def test_such_a_step_is_counted_as_skipped_and_leaves_nothing(options, streamed):
    net = network()
    if streamed:
        offload_model(net, "200KB")
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, deferred=net, **options)
    assert run(net, optimizer, REPAIRS["nan_to_num"], math.inf) == [128.0, 64.0, 128.0]
    assert optimizer.skipped_steps == 1
    net[0].weight.register_hook(overflow(math.inf))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer.synchronize()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    scaler.scale(loss_of(net, 0)).backward()
    scaler.unscale_(optimizer)
    optimizer.clip_grad_norm_(0.1, scaler)
    torch.nan_to_num_(net[0].weight.grad)
    scaler.step(optimizer)
    assert optimizer.grad_norm == math.inf and optimizer.skipped_steps == 2
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())  # as repaired
    optimizer.synchronize()
    assert all(map(torch.equal, net.parameters(), before))


def test_what_overflows_after_unscale_skips_the_step_too():
    net = network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(loss_of(net, 0)).backward()
    scaler.unscale_(optimizer)
    net[0].weight.grad[0, 0] = math.inf
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.skipped_steps == 1 and scaler.get_scale() == 32.0

