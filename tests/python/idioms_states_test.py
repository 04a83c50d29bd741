"""Idioms of training loops: schedules, settings, states and checkpoints."""
import copy
import math
import pickle

import torch
from idioms import RESIDENT, SETTINGS, Table, check, loss_of, train
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

import spillway

table = Table()
KINDS = ("memory", "disk", "streamed deferred")


# Schedules.

def scheduled(run, make, kind="AdamW", **arguments):
    """A step of the schedule after each update, with its rates; half of it after a resume."""
    net, optimizer = run.net_and_optimizer(kind=kind, **arguments)
    schedule, rates = make(optimizer), []
    for step in range(6):
        train(net, optimizer, steps=1, first=step)
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            schedule.step(1.0 + step)
        else:
            schedule.step()
        rates += [optimizer.param_groups[0]["lr"], schedule.get_last_lr()[0]]
        if step == 2:
            state = copy.deepcopy(schedule.state_dict())
            schedule = make(optimizer)
            schedule.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group["lr"] = rate
    return net, rates


def sequence(optimizer):
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    return lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[2])


SCHEDULES = {
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=8),
    "warm_restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2),
    "warmup_by_lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: min(1.0, (n + 1) / 4)),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "sequence": sequence,
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [2, 4], gamma=0.1),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, total_iters=5, power=2.0),
}


def add_schedules():
    for name, make in SCHEDULES.items():
        def use(run, make=make):
            return scheduled(run, make)
        use.__name__ = name
        table.idiom(settings=KINDS)(use)


add_schedules()


@table.idiom(settings=KINDS)
def cycles_of_momentum(run):
    return scheduled(run, lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.001, max_lr=0.01, step_size_up=2), kind="SGD", momentum=0.9)


@table.idiom(settings=KINDS)
def warm_restarts_within_an_epoch(run):
    net, optimizer = run.net_and_optimizer()
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    for epoch in range(2):
        for number in range(3):
            train(net, optimizer, steps=1, first=3 * epoch + number)
            schedule.step(epoch + number / 3)
    return net, optimizer.param_groups[0]["lr"]


@table.idiom(settings=KINDS)
def rates_by_hand(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * 0.01 * (1 + math.cos(math.pi * step / 4))
            group["weight_decay"] = 0.01 * step
            group["betas"] = (0.9 - 0.1 * step, 0.999)
        train(net, optimizer, steps=1, first=step)
    return net


@table.idiom(settings=KINDS)
def rate_as_a_tensor(run):
    net, optimizer = run.net_and_optimizer(lr=torch.tensor(1e-2))
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        schedule.step()
    return net, float(optimizer.param_groups[0]["lr"])


@table.idiom(settings=KINDS)
def range_test_of_rates(run):
    net, optimizer = run.net_and_optimizer(lr=1e-5)
    start, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    schedule = lr_scheduler.LambdaLR(optimizer, lambda n: 10 ** n)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    net.load_state_dict(start)
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    train(net, optimizer, steps=3)
    return net, losses


# Settings.

@table.idiom(settings=KINDS)
def foreach_and_fused(run):
    net, optimizer = run.net_and_optimizer(foreach=False)
    train(net, optimizer)
    again = run.make(net, fused=True)
    train(net, again)
    return net


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "amsgrad=True is not supported"))
def amsgrad(run):
    return run.net_and_optimizer(amsgrad=True)[0]


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "nesterov=True is not"))
def nesterov(run):
    return run.net_and_optimizer(kind="SGD", momentum=0.9, nesterov=True)[0]


@table.idiom(settings=KINDS)
def what_is_logged_of_an_optimizer(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert "lr: 0.01" in repr(optimizer)
    return [net, optimizer.defaults["lr"], len(optimizer.state), len(optimizer.param_groups),
            sum(p.numel() for group in optimizer.param_groups for p in group["params"])]


# States.

def resuming(run, save, load):
    """Trains, saves, and goes on with a new model and optimizer."""
    net, optimizer = run.net_and_optimizer()
    schedule = lr_scheduler.StepLR(optimizer, 1, 0.9)
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        schedule.step()
    saved = save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                  "schedule": schedule.state_dict(), "epoch": 3, "loss": 0.5})
    net, optimizer = run.net(seed=7), None
    optimizer = run.make(net)
    schedule = lr_scheduler.StepLR(optimizer, 1, 0.9)
    checkpoint = load(saved)
    net.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    schedule.load_state_dict(checkpoint["schedule"])
    for step in range(checkpoint["epoch"], 5):
        train(net, optimizer, steps=1, first=step)
        schedule.step()
    return net, optimizer.param_groups[0]["lr"]


def to_a_file(run):
    def save(checkpoint):
        torch.save(checkpoint, run.folder / "checkpoint.pt")
        return run.folder / "checkpoint.pt"
    return save


@table.idiom(settings=SETTINGS)
def resume_from_a_file(run):
    return resuming(run, to_a_file(run), torch.load)


@table.idiom(settings=KINDS)
def resume_from_a_mapped_file(run):
    return resuming(run, to_a_file(run), lambda file: torch.load(file, mmap=True,
                                                                 map_location="cpu"))


@table.idiom(settings=KINDS)
def resume_from_copies(run):
    return resuming(run, copy.deepcopy, lambda saved: saved)


@table.idiom(settings=KINDS)
def resume_from_pickled_states(run):
    return resuming(run, pickle.dumps, pickle.loads)


def moving(run, first_ours, then_ours):
    """Trains with one of the packages and goes on with the state in another."""
    net = run.net()
    optimizer = run.make(net) if first_ours else torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, optimizer, steps=3)
    model, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    net = run.net(seed=7)
    net.load_state_dict(model)
    optimizer = run.make(net) if then_ours else torch.optim.AdamW(net.parameters(), lr=1e-2)
    optimizer.load_state_dict(state)
    train(net, optimizer, steps=3, first=3)
    return net


@table.idiom(settings=RESIDENT)
def state_of_torchs_optimizer(run):
    return moving(run, first_ours=False, then_ours=True)


@table.idiom(settings=RESIDENT)
def state_for_torchs_optimizer(run):
    return moving(run, first_ours=True, then_ours=False)


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "optimizer.state has no entries"))
def move_the_state(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                state[name] = value.to("cpu")
    train(net, optimizer)
    return net


@table.idiom(settings=KINDS)
def begin_again_with_empty_state(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    train(net, optimizer)
    return net


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "cannot be pickled or copied"))
def copied_optimizer(run):
    return copy.deepcopy(run.net_and_optimizer()[1]).state_dict()


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "cannot be pickled or copied"))
def pickled_optimizer(run):
    return pickle.loads(pickle.dumps(run.net_and_optimizer()[1])).state_dict()


@table.idiom(settings=KINDS)
def a_second_optimizer_of_a_model(run):
    net, optimizer = run.net_and_optimizer(kind="SGD", momentum=0.9)
    train(net, optimizer)
    optimizer = run.make(net)
    train(net, optimizer)
    return net


@table.idiom(settings=RESIDENT, refused=(spillway.InvalidArgumentError, "another optimizer was"))
def two_optimizers_of_one_trunk(run):
    net = run.net()
    one = run.make(net, [*net.first.parameters(), *net.blocks.parameters()])
    two = run.make(net, [*net.first.parameters(), *net.head.parameters()])
    loss_of(net, 0).backward()
    one.step()
    two.step()
    return net


@table.idiom(settings=KINDS)
def state_of_a_scaler(run):
    net, optimizer = run.net_and_optimizer()
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2), []
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, step)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == 2:
            state = scaler.state_dict()
            scaler = torch.amp.GradScaler("cpu")
            scaler.load_state_dict(state)
    return net, scales


@table.over_all()
def test_schedules_and_states(row, setting, tmp_path):
    check(row, setting, tmp_path)
