"""Gradients that programs write, give to others and use in hooks, after they have left."""
import threading
import time

import pytest
import torch
from handles_test import BOUNDS, changed_by, check_as_with_torch, each, loss_of, network

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, offload_model


def augmented(parameter):
    parameter.grad += 0.001
    parameter.grad *= (parameter > 0).to(parameter.dtype)


def assigned(parameter):
    parameter.grad = parameter.grad.clamp_(-1e-3, 1e-3)


def augmented_data(parameter):
    parameter.grad.data += 0.001


def zeroed_and_written(parameter):
    parameter.grad.zero_()
    parameter.grad.add_(0.01)


def zeroed_lists(net):
    gradients = [parameter.grad for parameter in net.parameters()]
    torch._foreach_zero_(gradients)
    torch._foreach_add_(gradients, 0.01)


def between_passes(change, before_step=lambda net: None):
    """A step of two backward passes, between which gradients are changed."""
    def use(net, optimizer, number):
        optimizer.zero_grad()
        loss_of(net, number).backward()
        change(net)
        loss_of(net, number + 10).backward()
        before_step(net)
        optimizer.step()
    return use


def multiply_and_zero(net):
    for parameter in net.parameters():
        parameter.grad.mul_(0.25).zero_()


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)


def clip_and_zero(net):
    clip(net)
    net.zero_grad(set_to_none=False)


def clip_by(optimizer, net, most):
    if isinstance(optimizer, torch.optim.SGD):
        torch.nn.utils.clip_grad_norm_(net.parameters(), most)
    else:
        optimizer.clip_grad_norm_(most)


def after_a_clip(change, most=0.05):
    """A step whose gradients are changed after the optimizer's own clip."""
    def use(net, optimizer, number):
        optimizer.zero_grad()
        loss_of(net, number).backward()
        clip_by(optimizer, net, most)
        change(net)
        optimizer.step()
    return use


def clipped_twice(net, optimizer, number):
    optimizer.zero_grad()
    loss_of(net, number).backward()
    for most in (0.05, 0.5):
        clip_by(optimizer, net, most)
    optimizer.step()


def by_ones(net):
    net[1].weight.grad = torch.full_like(net[1].weight, 0.5)


def again(net):
    loss_of(net, 7).backward()


def anew(net):
    net.zero_grad()
    again(net)


def of_each(change):
    return lambda net: [change(parameter) for parameter in net.parameters()]


def dropped(parameter):
    if parameter.dim() > 1:
        parameter.grad = None


def in_a_hook(change):
    def use(net, optimizer, number):
        hooks = [parameter.register_post_accumulate_grad_hook(change)
                 for parameter in net.parameters()]
        optimizer.zero_grad()
        loss_of(net, number).backward()
        optimizer.step()
        for hook in hooks:
            hook.remove()
    return use


def decayed(parameter):
    parameter.grad.add_(parameter.detach(), alpha=0.1)


def replaced_by_a_sum(parameter):
    parameter.grad = (parameter.grad + 0.5 * parameter.detach()).clamp(-0.01, 0.01)


USES = {
    "augmented": each(augmented), "assigned": each(assigned),
    "augmented data": each(augmented_data),
    "zeroed and written": each(zeroed_and_written), "zeroed lists": changed_by(zeroed_lists),
    "multiplied and zeroed": between_passes(multiply_and_zero),
    "clipped and zeroed": between_passes(clip_and_zero, clip),
    "multiplied after a clip": after_a_clip(of_each(lambda p: p.grad.mul_(3))),
    "raised after a clip": after_a_clip(of_each(lambda p: p.grad.add_(0.01))),
    "dropped after a clip": after_a_clip(of_each(dropped)),
    "clipped after a clip": after_a_clip(clip),
    "one replaced after a clip": after_a_clip(by_ones),
    "added to after a clip": after_a_clip(again),
    "added to after a clip that did nothing": after_a_clip(again, 0.3),
    "made anew after a clip": after_a_clip(anew),
    "clipped twice by ours": clipped_twice,
    "clipped as lists after a clip": after_a_clip(lambda net: torch.nn.utils.clip_grad_norm_(
        net.parameters(), 0.04, foreach=True)),
    "added in a hook": in_a_hook(decayed),
    "replaced in a hook": in_a_hook(replaced_by_a_sum),
}


@pytest.mark.parametrize("dtype", BOUNDS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("steps", [1, None])
@pytest.mark.parametrize("use", USES)
def test_what_a_loop_writes_into_gradients_is_what_updates(use, steps, dtype):
    check_as_with_torch(USES[use], steps, dtype)


@pytest.mark.parametrize("change", [again, anew])
def test_gradients_of_streamed_parameters_that_come_after_a_clip_are_not_clipped(change):
    nets = []
    for ours in (True, False):
        net = network()
        if ours:
            offload_model(net, "200KB")
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=2) if ours else (
            torch.optim.SGD(net.parameters(), lr=0.1))
        for number in range(3):
            after_a_clip(change)(net, optimizer, number)
        nets.append(net)
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-7)


def test_a_clip_goes_with_the_gradients_that_it_was_for():
    nets = []
    for clips in (True, False):
        net = network()
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, max_norm=0.02)
        loss_of(net, 0).backward()
        if clips:
            optimizer.clip_grad_norm_(0.05)
        net.zero_grad()
        loss_of(net, 1).backward()
        optimizer.step()
        nets.append(net)
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(mine, theirs)


def test_a_gradient_may_be_given_to_another_optimizer():
    found = []
    for kind in (OffloadedSGD, torch.optim.SGD):
        net, other = network(), network()
        optimizer, second = kind(net.parameters(), lr=0.1), kind(other.parameters(), lr=0.2)
        loss_of(net, 0).backward()
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            theirs.grad = mine.grad
        second.step()
        optimizer.step()
        found.append([*net.parameters(), *other.parameters()])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-7)


def test_a_gradient_to_which_that_of_another_parameter_is_added_is_refused():
    net, other = network(), network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    loss_of(net, 0).backward()
    other[0].weight.grad = net[0].weight.grad
    loss_of(other, 1).backward()
    with pytest.raises(spillway.NotSupportedError, match=r"given to another.*p.grad.clone\(\)"):
        optimizer.step()


def test_the_graph_of_a_gradient_that_has_left_is_refused():
    net = network()
    optimizer = OffloadedAdamW(net.parameters())
    loss_of(net, 0).backward(create_graph=True)
    with pytest.raises(spillway.NotSupportedError, match="create_graph=True"):
        net[0].weight.grad.square().sum()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    loss_of(net, 1).backward()
    assert net[0].weight.grad.square().sum() > 0


@pytest.mark.parametrize("steps", [4, None])
def test_backward_passes_of_two_threads_are_refused(steps, monkeypatch):
    net = network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=steps)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    meets, failed = threading.Barrier(2), []
    monkeypatch.setattr(threading, "excepthook", failed.append)

    def wait(_gradient):
        meets.wait(10)

    net[1].weight.register_hook(wait)  # both threads have accumulated into net[2] by then
    shard, = optimizer._shards
    hand_over = shard._hand_over
    monkeypatch.setattr(shard, "_hand_over", lambda *given: time.sleep(0.05) or hand_over(*given))
    threads = [threading.Thread(target=loss_of(net, number).backward) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(spillway.NotSupportedError, match="two threads have run backward"):
        optimizer.step()
    assert failed
    optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


def test_a_clip_that_waits_holds_no_optimizer():
    net = network()
    optimizer = OffloadedAdamW(net.parameters())
    loss_of(net, 0).backward()
    optimizer.clip_grad_norm_(1e-3)
    gradient, before = net[0].weight.grad, net[0].weight.detach().clone()
    del optimizer
    with pytest.raises(spillway.InvalidArgumentError, match="gone with"):
        gradient.sum()
    assert torch.equal(net[0].weight, before)
