"""Idioms of training loops: gradients that stay after their step until the program drops them."""
import copy

import pytest
import torch
from idioms import SETTINGS, Net, Table, batch, check, loss_of, train
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import spillway
from spillway.torch import OffloadedAdamW

table = Table()
ALL = (*SETTINGS, "streamed deferred")


def never_clearing(run, after_backward=None, after_step=None, steps=4, **arguments):
    """A loop without zero_grad, and what it does with gradients."""
    net, optimizer = run.net_and_optimizer(**arguments)
    noted = []
    for step in range(steps):
        loss_of(net, step).backward()
        if after_backward is not None:
            noted.append(after_backward(net))
        optimizer.step()
        if after_step is not None:
            noted.append(after_step(net))
    return net, noted


@table.idiom(settings=ALL)
def never_clear(run):
    return never_clearing(run)


@table.idiom(settings=ALL)
def never_clear_momentum(run):
    return never_clearing(run, kind="SGD", momentum=0.9)


@table.idiom(settings=ALL)
def never_clear_and_clip(run):
    return never_clearing(run, lambda net: clip_grad_norm_(net.parameters(), 0.1))


@table.idiom()
def never_clear_and_clip_each_group(run):
    def clip(net):
        clip_grad_norm_(net.first.parameters(), 0.1)
        clip_grad_norm_(net.blocks.parameters(), 0.05)
    return never_clearing(run, clip)


@table.idiom(settings=ALL)
def log_gradients_after_the_step(run):
    return never_clearing(run, after_step=lambda net: [
        [p.grad.norm().item(), p.grad.abs().max(), p.grad.clone()] for p in net.parameters()])


@table.idiom()
def log_norms_after_the_step(run):
    net, optimizer = run.net_and_optimizer()
    noted = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        noted.append(clip_grad_norm_(net.parameters(), 0.1))
        optimizer.step()
        noted.append(torch.stack([p.grad.detach().norm() for p in net.parameters()]).norm())
    return net, noted


@table.idiom()
def decay_gradients_after_the_step(run):
    def decay(net):
        for p in net.parameters():
            p.grad.mul_(0.5)
    return never_clearing(run, after_step=decay)


@table.idiom()
def change_gradients_after_the_step(run):
    def change(net):
        for p in net.parameters():
            p.grad.add_(1e-2)
    return never_clearing(run, after_step=change)


@table.idiom(settings=ALL)
def steps_without_a_backward_pass(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        loss_of(net, step).backward()
        optimizer.step()
        optimizer.step()
    return net


@table.idiom(settings=ALL)
def clear_every_other_step(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(6):
        if step % 2 == 0:
            optimizer.zero_grad()
        loss_of(net, step).backward()
        loss_of(net, 10 + step).backward()
        optimizer.step()
    return net


@table.idiom()
def zeros_in_place_after_the_step(run):
    """A parameter that gets no gradient then has zeros, and moves on."""
    net, optimizer = run.net_and_optimizer()
    for step in range(4):
        x, target = batch(step)
        out = net.first(x) if step % 2 else net(x)[:, :4]
        functional.mse_loss(out[:, :4], target).backward()
        optimizer.step()
        net.zero_grad(set_to_none=False)
    return net


@table.idiom()
def zeros_of_each_after_the_step(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        loss_of(net, step).backward()
        optimizer.step()
        for p in net.parameters():
            p.grad.detach_()
            p.grad.zero_()
    return net


@table.idiom()
def a_head_that_is_used_now_and_then(run):
    """Torch goes on with the last gradient of what gets no new one."""
    net, optimizer = run.net_and_optimizer()
    for step in range(4):
        x, target = batch(step)
        functional.mse_loss(net.first(x)[:, :4] if step % 2 else net(x), target).backward()
        optimizer.step()
    return net


@table.idiom(settings=("memory", "disk", "deferred"))
def frozen_after_its_step(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        loss_of(net, step).backward()
        optimizer.step()
        net.head.requires_grad_(False)
    return net


@table.idiom()
def freed_by_hand_in_part(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(4):
        loss_of(net, step).backward()
        optimizer.step()
        for p in net.head.parameters():
            p.grad = None
    return net


@table.idiom()
def a_critic_whose_gradient_is_dropped_late(run):
    """The pass of the generator adds to what the critic's step has left, as in many GANs."""
    critic, maker = run.net(), torch.nn.Linear(6, 6)
    torch.nn.init.eye_(maker.weight)
    of_critic = run.make(critic)
    of_maker = torch.optim.SGD(maker.parameters(), lr=1e-2)
    for step in range(3):
        critic.zero_grad()
        x, target = batch(step)
        functional.mse_loss(critic(x), target).backward()
        functional.mse_loss(critic(maker(x).detach()), -target).backward()
        of_critic.step()
        maker.zero_grad()
        functional.mse_loss(critic(maker(x)), target).backward()
        of_maker.step()
    return critic, maker


@table.idiom()
def scaled_and_never_cleared(run):
    net, optimizer = run.net_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    noted = []
    for step in range(3):
        scaler.scale(loss_of(net, step)).backward()
        scaler.step(optimizer)
        scaler.update()
        noted.append([p.grad.clone() for p in net.parameters()])
    return net, noted


@table.idiom()
def skipped_by_the_scaler_and_never_cleared(run):
    net, optimizer = run.net_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        loss = loss_of(net, step) * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return net, scaler.get_scale(), [p.grad.isfinite().all().item() for p in net.parameters()]


@table.idiom(settings=("memory", "disk", "deferred"))
def bf16_parameters_never_cleared(run):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)).bfloat16()
    optimizer = run.make(net, kind="SGD", momentum=0.9)
    noted = []
    for step in range(3):
        x, target = batch(step)
        functional.mse_loss(net(x.bfloat16()).float(), target).backward()
        noted.append([p.grad.clone() for p in net.parameters()])
        net.zero_grad() if step == 2 else optimizer.step()
        if step == 0:  # parameters go apart by roundings of bf16 after that
            noted.append([p.grad.clone() for p in net.parameters()])
            return noted
    return noted


@table.over_all()
def test_kept(row, setting, tmp_path):
    check(row, setting, tmp_path)


def test_a_gradient_that_was_dropped_is_gone_for_who_kept_it():
    net = Net()
    optimizer = OffloadedAdamW(net.parameters())
    loss_of(net, 0).backward()
    optimizer.step()
    kept, norm = net.head.bias.grad, net.head.bias.grad.norm()
    assert norm > 0 and torch.equal(kept.norm(), norm)
    optimizer.zero_grad()
    assert net.head.bias.grad is None
    with pytest.raises(spillway.InvalidArgumentError, match="gone with its step.*p.grad.clone"):
        kept.norm()


@pytest.mark.parametrize("convert", [
    lambda net: net.half(), lambda net: net.to(torch.float64), lambda net: net.share_memory(),
    copy.deepcopy], ids=["half", "double", "share", "copy"])
def test_a_model_is_converted_once_its_optimizer_has_ended(convert):
    """Gradients of the last step have gone with the optimizer, and need no values for that."""
    net = Net()
    with OffloadedAdamW(net.parameters()) as optimizer:
        loss_of(net, 0).backward()
        optimizer.step()
    convert(net)
    with pytest.raises(spillway.InvalidArgumentError, match="gone with its step.*its optimizer"):
        net.head.bias.grad.norm()
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_a_converted_model_takes_its_gradients_along():
    theirs, ours = Net(), Net()
    ours.load_state_dict(theirs.state_dict())
    for net, kind in ((theirs, torch.optim.AdamW), (ours, OffloadedAdamW)):
        optimizer = kind(net.parameters())
        loss_of(net, 0).backward()
        optimizer.step()
        net.to(torch.float32)
        assert isinstance(net.head.bias.grad, torch.Tensor)
        net.double()
        assert net.head.bias.grad.dtype == torch.float64
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad, reference.grad)


def test_compiled_evaluation_leaves_gradients_without_memory():
    """Tracing looks at what is in `grad`, and at its memory."""
    net = Net()
    optimizer = OffloadedAdamW(net.parameters())
    train(net, optimizer, steps=1)
    before = [p.grad for p in net.parameters()]
    norms = [float(each.norm()) for each in before]
    evaluate = torch.compile(net, backend="aot_eager")
    with torch.no_grad():
        assert torch.allclose(evaluate(batch(0)[0]), net(batch(0)[0]))
    loss_of(evaluate, 0)
    assert all(p.grad is each for p, each in zip(net.parameters(), before, strict=True))
    assert norms == [float(each.norm()) for each in before]
