"""Idioms of training loops: how they compute gradients."""
import torch
from idioms import RESIDENT, Table, batch, check, loss_of, stepping, train
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import spillway

table = Table()
STREAMED = ("streamed",)


# Closures, hooks and functions.

@table.idiom()
def closures(run):
    net, optimizer = run.net_and_optimizer()
    losses = []
    for step in range(3):
        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(net, step)
            loss.backward()
            return loss
        losses.append(optimizer.step(closure).item())
    return net, losses


@table.idiom()
def hooks_of_tensors(run):
    net = run.net()
    norms = []
    net.head.weight.register_hook(lambda grad: grad * 0.5)
    net.blocks[1].linear.weight.register_hook(lambda grad: norms.append(grad.norm()))
    optimizer = run.make(net)
    net.first.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    train(net, optimizer, steps=3)
    return net, norms


@table.idiom()
def hooks_of_modules(run):
    net, optimizer = run.net_and_optimizer()
    seen = []
    net.head.register_full_backward_hook(lambda _, into, out: seen.append(out[0].norm()))
    net.blocks[0].register_forward_hook(lambda _, args, out: out * 0.5)
    train(net, optimizer, steps=3)
    return net, seen


def halve(p):
    p.grad.mul_(0.5)


def clamp(p):
    p.grad.clamp_(-1e-3, 1e-3)


@table.idiom()
def hooks_that_scale_what_was_accumulated(run):
    net = run.net()
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(halve)
    optimizer = run.make(net)
    train(net, optimizer, steps=3)
    return net


@table.idiom(where=STREAMED, refused=(spillway.NotSupportedError,
                                      "used in a hook while block 2 is on the device"))
def later_hooks_that_clip_what_was_accumulated(run):
    net, optimizer = run.net_and_optimizer()
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(clamp)
    train(net, optimizer, steps=3)
    return net


@table.idiom(settings=("memory", "deferred", "streamed"), where=STREAMED, refused=(
    spillway.NotSupportedError, "give the optimizer all parameters that are trained"))
def an_optimizer_in_the_backward_pass(run):
    net = run.net()
    optimizers = {p: run.make(net, [p]) for p in net.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    for step in range(3):
        loss_of(net, step).backward()
    return net


@table.idiom(refused=(RuntimeError, "second derivative"), where=STREAMED)
def gradient_penalty(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        x = batch(step)[0].requires_grad_()
        slope, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (loss_of(net, step) + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return net


@table.idiom()
def gradients_of_autograd(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        parameters = list(net.parameters())
        for p, grad in zip(parameters, torch.autograd.grad(loss_of(net, step), parameters),
                           strict=True):
            p.grad = grad
        optimizer.step()
    return net


@table.idiom()
def functional_calls(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        x, target = batch(step)
        out = torch.func.functional_call(net, dict(net.named_parameters()), (x,))
        functional.mse_loss(out, target).backward()
        optimizer.step()
    return net


@table.idiom(where=STREAMED, refused=(spillway.NotSupportedError,
                                      "torch.func .* goes through block 0"))
def gradients_of_samples(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        x, target = batch(step)

        def loss(parameters, x, target):
            out = torch.func.functional_call(net, parameters, (x[None],))
            return functional.mse_loss(out, target[None])

        parameters = {name: p.detach() for name, p in net.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, target)
        for name, p in net.named_parameters():
            p.grad = each[name].clamp(-0.01, 0.01).mean(0)
        optimizer.step()
    return net


@table.idiom()
def gradients_of_a_part(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, step).backward(inputs=list(net.head.parameters()))
        optimizer.step()
    return net


@table.idiom()
def evaluate_in_inference_mode(run):
    net, optimizer = run.net_and_optimizer()
    losses = []
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        net.eval()
        with torch.inference_mode():
            losses.append(loss_of(net, 50 + step).item())
        net.train()
    return net, losses


@table.idiom()
def jacobian(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    found = torch.autograd.functional.jacobian(net, batch(0)[0])
    train(net, optimizer, first=2)
    return net, found


@table.idiom(where=STREAMED, refused=(spillway.NotSupportedError,
                                      "torch.jit.trace goes through block 0"))
def trace_a_trained_model(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    with torch.no_grad():
        traced = torch.jit.trace(net, batch(0)[0], check_trace=False)
        before = traced(batch(1)[0])
    train(net, optimizer, first=2)
    return net, before


# Precision, and recomputation.

def scaling(run, loss=loss_of, accumulate=1):
    net, optimizer = run.net_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=2)
    scales = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        for part in range(accumulate):
            value = loss(net, 10 * part + step) * (float("inf") if step == 2 else 1.0)
            scaler.scale(value / accumulate).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return net, scales


@table.idiom()
def scaler_and_clip(run):
    return scaling(run)


@table.idiom()
def scaler_and_accumulation(run):
    return scaling(run, accumulate=2)


def autocast_loss(net, step):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(net, step)


@table.idiom()
def autocast(run):
    return stepping(run, loss=autocast_loss)


def recomputing(run, use_reentrant, accumulate=1):
    net, optimizer = run.net_and_optimizer()
    for step in range(2):
        optimizer.zero_grad()
        for part in range(accumulate):
            x, target = batch(10 * part + step)
            x = net.first(x)
            for block in net.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            functional.mse_loss(net.head(x), target).backward()
        optimizer.step()
    return net


@table.idiom()
def checkpoint_non_reentrant(run):
    return recomputing(run, use_reentrant=False)


@table.idiom()
def checkpoint_reentrant(run):
    return recomputing(run, use_reentrant=True)


@table.idiom()
def checkpoint_and_accumulation(run):
    return recomputing(run, use_reentrant=False, accumulate=3)


@table.idiom()
def checkpoint_a_sequence(run):
    def loss(net, step):
        x, target = batch(step)
        x = checkpoint_sequential(torch.nn.Sequential(*net.blocks), 2, net.first(x),
                                  use_reentrant=False)
        return functional.mse_loss(net.head(x), target)
    return stepping(run, loss=loss)


@table.idiom(settings=RESIDENT)
def truncated_backpropagation_through_time(run):
    torch.manual_seed(0)
    net = torch.nn.LSTM(6, 4, batch_first=True)
    optimizer = run.make(net)
    state = None
    for step in range(3):
        optimizer.zero_grad()
        x, target = batch(step)
        out, state = net(x[None], state)
        functional.mse_loss(out[0], target).backward()
        clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        state = tuple(each.detach() for each in state)
    return net


@table.idiom()
def saved_tensors_on_the_cpu(run):
    def loss(net, step):
        with torch.autograd.graph.save_on_cpu():
            return loss_of(net, step)
    return stepping(run, loss=loss)


@table.idiom()
def anomaly_detection(run):
    with torch.autograd.set_detect_anomaly(True):
        return stepping(run)


@table.idiom(settings=("memory", "deferred", "streamed"))
def compiled(run):
    net, optimizer = run.net_and_optimizer()
    compiled = torch.compile(net, backend="aot_eager")
    for step in range(2):
        optimizer.zero_grad()
        loss_of(compiled, step).backward()
        optimizer.step()
    return net


@table.over_all()
def test_passes(row, setting, tmp_path):
    check(row, setting, tmp_path)
