"""Idioms of training loops: gradients that are clipped, logged, accumulated, changed or dropped."""
import torch
from idioms import Table, batch, check, loss_of, stepping
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import spillway

table = Table()


# Clips, and norms that are logged.

@table.idiom()
def clip_the_norm(run):
    return stepping(run, lambda net, _: clip_grad_norm_(net.parameters(), 0.1))


@table.idiom()
def clip_the_largest_element(run):
    return stepping(run, lambda net, _: clip_grad_norm_(net.parameters(), 0.01, norm_type="inf"))


@table.idiom()
def clip_and_refuse_what_is_not_finite(run):
    return stepping(run, lambda net, _: clip_grad_norm_(net.parameters(), 0.1,
                                                        error_if_nonfinite=True, foreach=False))


@table.idiom()
def clip_values(run):
    return stepping(run, lambda net, _: clip_grad_value_(net.parameters(), clip_value=1e-3))


@table.idiom()
def clip_each_group(run):
    net = run.net()
    optimizer = run.make(net, [{"params": net.first.parameters()},
                               {"params": net.blocks.parameters(), "lr": 1e-3},
                               {"params": net.head.parameters()}])
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        for group in optimizer.param_groups:
            clip_grad_norm_(group["params"], max_norm=0.05)
        optimizer.step()
    return net


@table.idiom()
def clip_each_parameter(run):
    return stepping(run, lambda net, _: [clip_grad_norm_(p, 0.02) for p in net.parameters()])


@table.idiom()
def clip_adaptively(run):
    def clip(net, _):
        for p in net.parameters():
            largest = p.detach().norm().clamp(min=1e-3) * 0.01
            if p.grad.norm() > largest:
                p.grad.detach().mul_(largest / p.grad.norm().clamp(min=1e-6))
    return stepping(run, clip)


@table.idiom()
def log_the_norm_by_hand(run):
    def norm(net, _):
        total = 0.0
        for p in net.parameters():
            if p.grad is not None:
                total += p.grad.data.norm(2).item() ** 2
        return total ** 0.5
    return stepping(run, norm)


@table.idiom()
def log_norms_of_many_kinds(run):
    def norms(net, _):
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        return [get_total_norm(grads), torch.norm(torch.stack([torch.norm(g) for g in grads])),
                torch.cat([g.view(-1) for g in grads]).norm(), max(g.abs().max() for g in grads),
                {name: p.grad.detach().pow(2).mean().sqrt().item()
                 for name, p in net.named_parameters()},
                torch.stack(torch._foreach_norm(grads)), [float((g == 0).sum()) for g in grads],
                torch.linalg.vector_norm(grads[0], ord=1), grads[0].std()]
    return stepping(run, norms)


# Gradients that are accumulated.

def accumulating(run, divide, clip_in_between=False, clip=True):
    net, optimizer = run.net_and_optimizer()
    optimizer.zero_grad()
    for number in range(8):
        loss = loss_of(net, number)
        (loss / 4 if divide else loss).backward()
        if clip_in_between:
            clip_grad_norm_(net.parameters(), 0.1)
        if (number + 1) % 4 == 0:
            if clip and not clip_in_between:
                clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return net


@table.idiom()
def accumulate_means_and_clip(run):
    return accumulating(run, divide=True)


@table.idiom()
def accumulate_sums(run):
    return accumulating(run, divide=False, clip=False)


@table.idiom()
def clip_between_accumulated_passes(run):
    return accumulating(run, divide=True, clip_in_between=True)


@table.idiom()
def divide_accumulated_gradients(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        for part in range(3):
            loss_of(net, 10 * step + part).backward()
        for p in net.parameters():
            p.grad /= 3
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom()
def several_losses_of_one_graph(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        x, target = batch(step)
        out = net(x)
        functional.mse_loss(out, target).backward(retain_graph=True)
        (0.1 * out.abs().mean()).backward()
        optimizer.step()
    return net


@table.idiom()
def weighted_sum_of_losses(run):
    def loss(net, step):
        out = net(batch(step)[0])
        return functional.mse_loss(out, batch(step)[1]) + 0.1 * functional.l1_loss(
            out, batch(step)[1]) + 1e-3 * sum(p.square().sum() for p in net.head.parameters())
    return stepping(run, loss=loss)


# Gradients that are changed or dropped.

@table.idiom()
def clamp_data(run):
    def clamp_all(net, _):
        for p in net.parameters():
            p.grad.data.clamp_(-1e-3, 1e-3)
    return stepping(run, clamp_all)


@table.idiom()
def add_noise(run):
    def noise(net, _):
        for number, p in enumerate(net.parameters()):
            generator = torch.Generator().manual_seed(number)
            p.grad.add_(torch.randn(p.shape, generator=generator), alpha=0.01)
    return stepping(run, noise)


@table.idiom()
def replace_what_is_not_finite(run):
    def replace(net, _):
        for p in net.parameters():
            torch.nan_to_num_(p.grad, nan=0.0, posinf=1.0)
    return stepping(run, replace)


@table.idiom()
def project_conflicting_gradients(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        found = []
        for task in range(2):
            optimizer.zero_grad()
            loss_of(net, 10 * task + step).backward()
            found.append(torch.cat([p.grad.flatten().clone() for p in net.parameters()]))
        one, two = found
        if (product := one @ two) < 0:
            one = one - product / two.square().sum() * two
        optimizer.zero_grad()
        for p, part in zip(net.parameters(),
                           (one + two).split([p.numel() for p in net.parameters()]), strict=True):
            p.grad = part.view_as(p).clone()
        optimizer.step()
    return net


@table.idiom(refused=(spillway.NotSupportedError, r"zero_grad\(set_to_none=False\) leaves zeros"))
def zero_in_place_by_the_optimizer(run):
    net, optimizer = run.net_and_optimizer()
    optimizer.zero_grad(set_to_none=False)
    return net


@table.idiom()
def zero_in_place_by_the_model(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        net.zero_grad(set_to_none=False)
        loss_of(net, step).backward()
        optimizer.step()
    return net


@table.idiom()
def zero_each_gradient(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        for p in net.parameters():
            if p.grad is not None:
                p.grad.detach_()
                p.grad.zero_()
        loss_of(net, step).backward()
        optimizer.step()
    return net


@table.idiom()
def set_gradients_to_none(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        for p in net.parameters():
            p.grad = None
        loss_of(net, step).backward()
        if step == 1:
            net.head.bias.grad = None
        optimizer.step()
    return net


@table.idiom()
def skip_a_batch_that_is_not_finite(run):
    net, optimizer = run.net_and_optimizer()
    skipped = 0
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(net, step) * (float("nan") if step == 1 else 1.0)
        loss.backward()
        if any(not torch.isfinite(p.grad).all() for p in net.parameters()):
            skipped += 1
            continue
        optimizer.step()
    return net, skipped


@table.over_all()
def test_gradients(row, setting, tmp_path):
    check(row, setting, tmp_path)
