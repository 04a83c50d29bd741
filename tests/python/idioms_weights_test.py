"""Idioms of training loops: weights that the program writes, adapts or prunes."""
import copy

import torch
from idioms import RESIDENT, Net, Table, check, loss_of, train
from torch.nn import functional
from torch.nn.utils import (
    parameters_to_vector,
    parametrizations,
    parametrize,
    prune,
    vector_to_parameters,
)

import spillway

table = Table()


# Weights that the program writes.

@table.idiom()
def clamp_weights(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(-0.2, 0.2)
    return net


@table.idiom()
def bound_the_norm_of_rows(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        with torch.no_grad():
            net.head.weight.copy_(torch.renorm(net.head.weight, p=2, dim=0, maxnorm=0.5))
            net.blocks[0].linear.weight.data = functional.normalize(net.blocks[0].linear.weight)
    return net


@table.idiom()
def initialise_again(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    torch.manual_seed(3)
    net.head.reset_parameters()
    torch.nn.init.xavier_uniform_(net.blocks[1].linear.weight)
    torch.nn.init.zeros_(net.blocks[1].linear.bias)
    net.blocks[2].apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
    train(net, optimizer, first=2)
    return net


@table.idiom()
def decay_and_noise_by_hand(run):
    net, optimizer = run.net_and_optimizer(weight_decay=0.0)
    for step in range(3):
        train(net, optimizer, steps=1, first=step)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.ones_like(p), alpha=1e-3)
                p.mul_(1 - 1e-2)
    return net


@table.idiom()
def vectors_of_parameters(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    vector = parameters_to_vector(net.parameters()).detach()
    vector_to_parameters(vector * 0.9, net.parameters())
    train(net, optimizer, first=2)
    return net, parameters_to_vector(net.parameters())


@table.idiom()
def keep_the_best_weights(run):
    net, optimizer = run.net_and_optimizer()
    best, state, patience = float("inf"), None, 0
    for step in range(6):
        train(net, optimizer, steps=1, first=step)
        net.eval()
        with torch.no_grad():
            loss = loss_of(net, 50 + step).item()
        net.train()
        if loss < best:
            best, state = loss, copy.deepcopy(net.state_dict())
        elif (patience := patience + 1) > 1:
            break
    net.load_state_dict(state)
    return net, best


@table.idiom(settings=RESIDENT)
def embedding_with_padding_and_a_largest_norm(run):
    torch.manual_seed(0)
    net = torch.nn.Embedding(12, 8, padding_idx=0, max_norm=1.0)
    optimizer = run.make(net)
    for step in range(3):
        optimizer.zero_grad()
        net(torch.tensor([0, 3, 5 + step, 3])).square().sum().backward()
        optimizer.step()
    return net


@table.idiom(settings=RESIDENT, refused=(spillway.NotSupportedError, "is sparse; use sparse=False"))
def sparse_embedding(run):
    net = torch.nn.Embedding(12, 8, sparse=True)
    optimizer = run.make(net, kind="SGD")
    net(torch.tensor([0, 3])).sum().backward()
    optimizer.step()
    return net


# Steps that go away from the weights and back.

def climb(net, step):
    """The first half of a step of SAM: moves weights to where the loss is largest nearby."""
    loss_of(net, step).backward()
    norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in net.parameters()]))
    moved = {}
    with torch.no_grad():
        for p in net.parameters():
            moved[p] = p.grad * (0.05 / (norm + 1e-12))
            p.add_(moved[p])
    return moved


@table.idiom()
def sharpness_aware(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        moved = climb(net, step)
        optimizer.zero_grad()
        loss_of(net, step).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(moved[p])
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom()
def sharpness_aware_through_data(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        before = {p: p.data.clone() for p in net.parameters()}
        climb(net, step)
        optimizer.zero_grad()
        loss_of(net, step).backward()
        for p in net.parameters():
            p.data = before[p]
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom()
def sharpness_aware_with_gradients_put_aside(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        moved = climb(net, step)
        optimizer.zero_grad()
        loss_of(net, step).backward()
        grads = {p: p.grad.clone() for p in net.parameters()}
        optimizer.zero_grad()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(moved[p])
                p.grad = grads[p]
        optimizer.step()
        optimizer.zero_grad()
    return net


@table.idiom()
def look_ahead(run):
    net, optimizer = run.net_and_optimizer()
    slow = [p.detach().clone() for p in net.parameters()]
    for step in range(4):
        train(net, optimizer, steps=1, first=step)
        if step % 2:
            for kept, p in zip(slow, net.parameters(), strict=True):
                kept.add_(p.data - kept, alpha=0.5)
                with torch.no_grad():
                    p.copy_(kept)
    return net


# Adapters, parametrizations and pruning.

class Adapted(torch.nn.Module):
    """LoRA around a frozen layer."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = torch.nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


@table.idiom()
def low_rank_adapters_by_hand(run):
    torch.manual_seed(0)
    net = Net().requires_grad_(False)
    for block in net.blocks:
        block.linear = Adapted(block.linear)
    run.place(net)
    train(net, run.make(net, [p for p in net.parameters() if p.requires_grad]), steps=3)
    with torch.no_grad():
        for block in net.blocks:
            block.linear.base.weight += block.linear.b @ block.linear.a
    return net


def parametrized(run, register):
    torch.manual_seed(0)
    net = Net()
    for block in net.blocks:
        register(block.linear)
    run.place(net)
    train(net, run.make(net), steps=3)
    return net


@table.idiom()
def weight_norm(run):
    return parametrized(run, parametrizations.weight_norm)


@table.idiom()
def spectral_norm(run):
    return parametrized(run, parametrizations.spectral_norm)


@table.idiom()
def orthogonal(run):
    return parametrized(run, parametrizations.orthogonal)


@table.idiom()
def cached_parametrizations(run):
    with parametrize.cached():
        pass
    torch.manual_seed(0)
    net = Net()
    parametrizations.weight_norm(net.head)
    run.place(net)
    optimizer = run.make(net)
    for step in range(2):
        optimizer.zero_grad()
        with parametrize.cached():
            loss_of(net, step).backward()
        optimizer.step()
    return net


class Symmetric(torch.nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@table.idiom(where=("deferred",), refused=(
    spillway.InvalidArgumentError, r"written while its deferred update .*synchronize\(\) first"))
def parametrize_between_steps(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    parametrize.register_parametrization(net.blocks[0].linear, "weight", Symmetric())
    train(net, optimizer, first=2)
    parametrize.remove_parametrizations(net.blocks[0].linear, "weight")
    train(net, optimizer, first=4)
    return net


@table.idiom()
def prune_before(run):
    torch.manual_seed(0)
    net = Net()
    for block in net.blocks:
        prune.l1_unstructured(block.linear, "weight", amount=0.5)
    run.place(net)
    train(net, run.make(net), steps=3)
    return net


@table.idiom(settings=RESIDENT)
def prune_between_steps(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    prune.l1_unstructured(net.head, "weight", amount=0.5)
    train(net, optimizer, first=2)
    prune.remove(net.head, "weight")
    train(net, optimizer, first=4)
    return net


@table.over_all()
def test_weights(row, setting, tmp_path):
    check(row, setting, tmp_path)
