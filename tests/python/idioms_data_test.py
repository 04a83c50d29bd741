"""Idioms of training loops: weights that are written through `data`, of which torch keeps no count,
and steps that go away from the weights and back."""
import copy

import pytest
import torch
from idioms import Net, Table, batch, check, loss_of, train
from torch.nn import functional

from spillway.torch._taken_data import fingerprint

table = Table()
SETTINGS = ("memory", "disk", "deferred", "streamed", "streamed deferred", "streamed disk")


# Weights that are written through `data`.

@table.idiom(settings=SETTINGS)
def clamp_weights_through_data(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        for p in net.parameters():
            p.data.clamp_(-0.2, 0.2)
    return net


@table.idiom(settings=SETTINGS)
def evaluate_an_average_that_is_copied_in(run):
    net, optimizer = run.net_and_optimizer()
    shadow = {name: p.data.clone() for name, p in net.named_parameters()}
    losses = []
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        losses.append(loss_of(net, 20 + step).item())
        backup = {}
        for name, p in net.named_parameters():
            shadow[name] = 0.5 * shadow[name] + 0.5 * p.data
            backup[name] = p.data.clone()
            p.data.copy_(shadow[name])
        with torch.no_grad():
            losses.append(loss_of(net, 20 + step).item())
        for name, p in net.named_parameters():
            p.data.copy_(backup[name])
        with torch.no_grad():
            losses.append(loss_of(net, 20 + step).item())
    return net, losses


def begin(module):
    """Weights as models of transformers begin."""
    if isinstance(module, torch.nn.Linear):
        module.weight.data.normal_(mean=0.0, std=0.2)
        module.bias.data.zero_()
    elif isinstance(module, torch.nn.LayerNorm):
        module.weight.data.fill_(1.5)


@table.idiom(settings=SETTINGS)
def begin_once_the_optimizer_is_there(run):
    net, optimizer = run.net_and_optimizer()
    torch.manual_seed(4)
    net.apply(begin)
    before = loss_of(net, 9).item()
    train(net, optimizer, steps=3)
    return net, before


@table.idiom(settings=SETTINGS)
def decay_through_data(run):
    net, optimizer = run.net_and_optimizer(weight_decay=0.0)
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data.mul_(1 - group["lr"] * 0.1).add_(torch.ones_like(p), alpha=1e-3)
    return net


@table.idiom(settings=SETTINGS)
def write_between_accumulated_passes(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        for part in range(3):
            loss_of(net, 10 * step + part).backward()
            for p in net.parameters():
                p.data.mul_(0.97)
        optimizer.step()
    return net


@table.idiom(settings=("memory", "disk", "streamed", "streamed disk"))
def write_through_data_that_was_kept(run):
    net, optimizer = run.net_and_optimizer()
    kept = [p.data for p in net.parameters()]
    losses = []
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        torch._foreach_mul_(kept, 0.9)
        with torch.no_grad():
            losses.append(loss_of(net, 30).item())
        for each in kept[::3]:
            each.add_(0.01)
        with torch.no_grad():
            losses.append(loss_of(net, 30).item())
    return net, losses


@table.idiom(settings=SETTINGS)
def bound_weights_in_the_forward_pass(run):
    net, optimizer = run.net_and_optimizer()

    def bound(module, _):
        module.weight.data.clamp_(-0.2, 0.2)

    for module in net.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(bound)
    losses = []
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        with torch.no_grad():
            losses.append(loss_of(net, 40).item())
    return net, losses


@table.idiom(settings=SETTINGS)
def log_weights_anywhere(run):
    net, optimizer = run.net_and_optimizer()
    noted = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        noted += [p.data.norm() for p in net.parameters()]
        loss.backward()
        noted += [p.data.abs().mean() for p in net.parameters()]
        optimizer.step()
        noted.append(torch.cat([p.data.flatten() for p in net.parameters()]))
    return net, noted


@table.idiom(settings=SETTINGS)
def exchange_rows_through_data(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        train(net, optimizer, steps=1, first=step)
        for p in net.parameters():
            p.data[:] = p.data.flip(0)
    return net


@table.idiom(settings=SETTINGS)
def save_what_was_written_through_data(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    for p in net.parameters():
        p.data.mul_(0.5)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    for p in net.parameters():
        p.data.fill_(7.0)
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(net, optimizer, first=2)
    return net


# Steps that go away from the weights and back.

class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021), around another optimizer."""

    def __init__(self, params, base, rho=0.05, adaptive=False, **arguments):
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **arguments})
        self.base = base(self.param_groups)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    def _all(self):
        return [(group, p) for group in self.param_groups for p in group["params"]
                if p.grad is not None]

    @torch.no_grad()
    def climb(self):
        norm = torch.norm(torch.stack([
            ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2)
            for group, p in self._all()]), p=2)
        for group, p in self._all():
            scale = group["rho"] / (norm + 1e-12)
            self.state[p]["start"] = p.data.clone()
            p.add_((torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for _, p in self._all():
            p.data = self.state[p]["start"]
        self.base.step()
        self.zero_grad()

    def step(self, closure):
        self.climb()
        torch.enable_grad()(closure)()
        self.descend()


def sharpness_aware(run, loss=loss_of, steps=3, **arguments):
    net = run.net()
    optimizer = SAM(net.parameters(), lambda groups: run.make(net, groups, **arguments))
    for step in range(steps):
        loss(net, step).backward()

        def closure(step=step):
            loss(net, step).backward()

        optimizer.step(closure)
    return net


@table.idiom(settings=SETTINGS)
def sharpness_aware_adamw(run):
    return sharpness_aware(run)


@table.idiom(settings=SETTINGS)
def sharpness_aware_momentum(run):
    return sharpness_aware(run, kind="SGD", momentum=0.9)


@table.idiom(settings=SETTINGS)
def sharpness_aware_in_two_calls(run):
    net = run.net()
    optimizer = SAM(net.parameters(), lambda groups: run.make(net, groups), adaptive=True, rho=2.0)
    for step in range(3):
        loss_of(net, step).backward()
        optimizer.climb()
        loss_of(net, step).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.descend()
    return net


@table.idiom(settings=SETTINGS)
def sharpness_aware_over_accumulated_passes(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        for part in range(2):
            (loss_of(net, 10 * step + part) / 2).backward()
        moved = {}
        with torch.no_grad():
            for p in net.parameters():
                moved[p] = 0.05 * p.grad.sign()
                p.add_(moved[p])
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(net, 10 * step + part) / 2).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(moved[p])
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom(settings=SETTINGS)
def sharpness_aware_in_place_through_data(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        before = {p: p.data.clone() for p in net.parameters()}
        loss_of(net, step).backward()
        for p in net.parameters():
            p.data.add_(p.grad.data, alpha=0.1)
        optimizer.zero_grad()
        loss_of(net, step).backward()
        for p in net.parameters():
            p.data.copy_(before[p])
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom(settings=SETTINGS)
def adversarial_weights(run):
    """Adversarial weight perturbation (Wu et al. 2020): one layer is moved, and moved back."""
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        optimizer.zero_grad()
        proxy = Net()
        proxy.load_state_dict(net.state_dict())
        moved = 0.01 * torch.sign(proxy.head.weight)
        with torch.no_grad():
            net.head.weight.add_(moved)
            net.blocks[1].linear.weight.add_(0.02)
        x, target = batch(step)
        functional.mse_loss(net(x), target).backward()
        optimizer.step()
        with torch.no_grad():
            net.head.weight.sub_(moved)
            net.blocks[1].linear.weight.sub_(0.02)
    return net


@table.over_all()
def test_data_and_steps_away(row, setting, tmp_path):
    check(row, setting, tmp_path)


@pytest.mark.parametrize("shape, dtype", [
    ((5000,), torch.float32), ((3, 1030), torch.bfloat16), ((7,), torch.uint8),
    ((2, 3, 4, 5), torch.float64), ((1,), torch.float16), ((0,), torch.float32)])
def test_a_fingerprint_is_of_each_place(shape, dtype):
    values = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    if len(shape) == 4:
        values = values.to(memory_format=torch.channels_last)
    before, kept = fingerprint(values), values.clone()
    assert torch.equal(before, fingerprint(values))
    changes = [lambda flat, place: flat[place].add_(1), lambda flat, _: flat.copy_(flat.flip(0)),
               lambda flat, place: flat.copy_(flat.roll(place + 1)), lambda flat, _: flat.mul_(3)]
    for change in changes:
        for place in range(0, values.numel(), 97):
            change(values.permute(0, 2, 3, 1).view(-1) if len(shape) == 4 else values.view(-1),
                   place)
            assert torch.equal(values, kept) == torch.equal(before, fingerprint(values))
            values.copy_(kept)
