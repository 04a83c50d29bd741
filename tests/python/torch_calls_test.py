"""What programs call of torch beside a loop's usual calls: it is done as torch does it, or refused
by name."""
import copy
import ctypes
import importlib
import inspect
import io
import pickle

import numpy
import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import spillway
from spillway.torch import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedOptimizer,
    OffloadedSGD,
)

KINDS = (OffloadedAdamW, torch.optim.AdamW)


def batch(step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def make(kind, **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    return net, kind(net.parameters(), lr=1e-2, **options)


def train(net, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        net(batch(step)).square().mean().backward()
        optimizer.step()


def near(some, others):
    """Whether they are equal up to roundings of fp32 that a few updates carry on."""
    return all(torch.allclose(a.detach(), b.detach(), rtol=0, atol=1e-5)
               for a, b in zip(some, others, strict=True))


def doubled(_optimizer, state_dict):
    state_dict["param_groups"] = [{**group, "lr": 0.25} for group in state_dict["param_groups"]]
    return {**state_dict, "state": {
        number: {**state, "exp_avg": 2 * state["exp_avg"]}
        for number, state in state_dict["state"].items()}}


def test_hooks_of_states_are_those_of_torch():
    told = []
    for kind in KINDS:
        saved = make(kind)
        train(*saved, 3)
        notes = []
        saved[1].register_state_dict_pre_hook(lambda _, notes=notes: notes.append("before"))
        saved[1].register_state_dict_post_hook(lambda _, state: {"optimizer": state, "mine": 1})
        state = saved[1].state_dict()
        before = copy.deepcopy(state["optimizer"])
        net, optimizer = make(kind)
        optimizer.register_load_state_dict_pre_hook(lambda _, wrapped: wrapped["optimizer"])
        optimizer.register_load_state_dict_pre_hook(doubled)

        def loaded(optimizer, notes=notes):
            state = optimizer.state_dict()
            notes += [state["state"][0]["exp_avg"].clone(),
                      state["state"][0]["step"].clone(),
                      torch.tensor(optimizer.param_groups[0]["lr"])]
            optimizer.param_groups[0]["lr"] = 0.005

        handle = optimizer.register_load_state_dict_post_hook(loaded)
        optimizer.load_state_dict(state)
        assert torch.equal(notes[1], 2 * before["state"][0]["exp_avg"])
        assert optimizer.param_groups[0]["lr"] == 0.005
        handle.remove()
        train(net, optimizer, 1)
        told.append([*notes[1:], *net.parameters(), saved[0][0].weight])
        assert notes[0] == "before" and sorted(state) == ["mine", "optimizer"]
    assert near(*told)


def test_hooks_of_steps_are_those_of_torch():
    told = []
    for kind in KINDS:
        net, optimizer = make(kind)
        notes = []

        def note(name, notes=notes):
            return lambda _, arguments, keywords: notes.append(
                (name, len(arguments), list(keywords)))

        def closure(net=net):
            net.zero_grad()
            loss = net(batch(7)).square().mean()
            loss.backward()
            return loss

        def with_a_closure(optimizer, _arguments, keywords, closure=closure):
            return (optimizer,), {**keywords, "closure": closure}

        handles = [register_optimizer_step_pre_hook(note("all before")),
                   register_optimizer_step_post_hook(note("all after"))]
        optimizer.register_step_pre_hook(with_a_closure)
        optimizer.register_step_pre_hook(note("before"))
        optimizer.register_step_post_hook(note("after"))
        loss = optimizer.step()
        for handle in handles:
            handle.remove()
        told.append((notes, float(loss.detach()), list(net.parameters())))
    assert told[0][0] == told[1][0] and len(told[0][0]) == 4
    assert told[0][1] == pytest.approx(told[1][1], rel=1e-6)
    assert near(told[0][2], told[1][2])


@pytest.mark.parametrize("when", ["before", "after"])
def test_parameters_that_other_processes_share_are_refused(when):
    net, _ = make(torch.optim.SGD)
    net.share_memory()
    place = net[0].weight.data_ptr()
    with pytest.raises(spillway.NotSupportedError, match=r"parameter 0 .*shared.*deepcopy"):
        OffloadedAdamW(net.parameters())
    assert net[0].weight.data_ptr() == place
    net, optimizer = make(OffloadedAdamW)
    train(net, optimizer, 1)
    if when == "before":
        net.share_memory()
    with pytest.raises(spillway.NotSupportedError, match=r"moved, as by share_memory.*deepcopy"):
        net(batch(1)).square().mean().backward()
        optimizer.step()
        net.share_memory()
        net(batch(2)).square().mean().backward()
        optimizer.step()
    copied = copy.deepcopy(net)
    train(copied, OffloadedAdamW(copied.parameters()), 1)


def behind_pointer(gradient):
    return (ctypes.c_float * gradient.numel()).from_address(gradient.data_ptr())[:]


READS = {
    "from_dlpack": torch.from_dlpack, "numpy": lambda gradient: gradient.numpy(),
    "asarray": numpy.asarray, "from_dlpack of numpy": numpy.from_dlpack,
    "data_ptr": behind_pointer, "tolist": lambda gradient: gradient.tolist(),
    "pickle": lambda gradient: pickle.loads(pickle.dumps(gradient)),
    "share_memory_": lambda gradient: gradient.share_memory_(),
}


@pytest.mark.parametrize("read", READS)
def test_memory_of_gradients_that_have_left_is_there_for_those_who_ask(read):
    found = []
    for kind in KINDS:
        net, optimizer = make(kind)
        net(batch(0)).square().mean().backward()
        found.append(torch.as_tensor(READS[read](net[0].weight.grad)).view(-1))
        assert torch.save(net, io.BytesIO()) is None and copy.deepcopy(net)[0].weight.grad is None
        optimizer.step()
        found.append(net[0].weight.detach())
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[1], found[3])


def test_a_capsule_of_a_gradient_that_has_left_is_refused():
    net, _optimizer = make(OffloadedAdamW)
    net(batch(1)).square().mean().backward()
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.utils.dlpack.to_dlpack(net[0].weight.grad)


class Head(torch.nn.Module):
    """A model whose head has a parameter of its own, of the embedding's shape."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(8, 8), torch.nn.Linear(8, 8, bias=False)

    def forward(self, words):
        return self.head(self.embedding(words))


def retied(net):
    net.head.weight.data = net.embedding.weight.data


def both_elsewhere(net):
    net.head.weight.data = net.embedding.weight.data = torch.zeros(8, 8)


@pytest.mark.parametrize("tie", [retied, both_elsewhere])
@pytest.mark.parametrize("read", ["step", "backward", "state_dict"])
def test_parameters_whose_memory_becomes_one_are_refused(tie, read):
    net = Head()
    optimizer = OffloadedAdamW(net.parameters(), lr=1e-2)
    words = torch.arange(8)
    for step in range(3):
        optimizer.zero_grad()
        net(words).square().mean().backward()
        optimizer.step()
    before = net.head.weight.data
    if read == "step":
        net(words).square().mean().backward()
    tie(net)
    with pytest.raises(spillway.InvalidArgumentError, match="same memory.*one nn.Parameter"):
        if read == "backward":
            net(words).square().mean().backward()
        getattr(optimizer, read if read != "backward" else "step")()
    assert net.head.weight.data_ptr() == net.embedding.weight.data_ptr() != before.data_ptr()


def new(value, trained=True):
    return torch.nn.Parameter(torch.full((6,), value), requires_grad=trained)


def one_of_a_later_group(mine, optimizer):
    late = new(2.0)
    optimizer.add_param_group({"params": [late]})
    return late, "parameter 0 of group 1"


def a_frozen_one_of_its_group(mine, optimizer):
    return optimizer.param_groups[0]["params"][1], "parameter 1 of group 0"


def one_outside(mine, optimizer):
    return new(4.0, trained=False), "not in the optimizer"


def one_of_another_optimizer(mine, optimizer):
    theirs = new(5.0)
    mine.theirs = OffloadedAdamW([theirs])
    return theirs, "not in the optimizer"


OTHERS = (one_of_a_later_group, a_frozen_one_of_its_group, one_outside, one_of_another_optimizer)


@pytest.mark.parametrize("read", ["step", "backward", "state_dict", "values_changed"])
@pytest.mark.parametrize("of", OTHERS)
def test_memory_of_any_other_parameter_is_refused(of, read):
    mine = new(1.0)
    optimizer = OffloadedAdamW([mine, new(3.0, trained=False)], accumulation_steps=None)
    other, name = of(mine, optimizer)
    for step in range(1 + (read == "step")):
        mine.square().sum().backward()
        if step == 0:
            optimizer.step()
    mine.data = other.data
    with pytest.raises(spillway.InvalidArgumentError, match=f"(?s){name}.* same memory"):
        if read == "backward":
            mine.square().sum().backward()
        elif read == "values_changed":
            optimizer.values_changed(mine)
        else:
            getattr(optimizer, read)()
    mine.data = other.data.clone()  # as the remedy says
    optimizer.zero_grad()
    mine.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("of", OTHERS)
def test_parameters_in_memory_of_another_one_cannot_come(of):
    mine = new(1.0)
    optimizer = OffloadedAdamW([mine, new(3.0, trained=False)])
    other, _ = of(mine, optimizer)
    for call in (lambda late: optimizer.add_param_group({"params": [late]}),
                 lambda late: OffloadedAdamW([late])):
        with pytest.raises(spillway.InvalidArgumentError, match="two parameters in the same mem"):
            call(torch.nn.Parameter(other.data))
        call(torch.nn.Parameter(other.data.clone()))


def test_parts_of_one_tensor_are_memory_of_their_own():
    nets = [make(kind) for kind in KINDS]
    for net, optimizer in nets:
        train(net, optimizer, 2)
        whole = torch.nn.utils.parameters_to_vector(net.parameters()) * 0.5
        torch.nn.utils.vector_to_parameters(whole, net.parameters())
        train(net, optimizer, 2)
    assert near(nets[0][0].parameters(), nets[1][0].parameters())


@pytest.mark.parametrize("ours, theirs", [
    (OffloadedAdamW, torch.optim.AdamW), (OffloadedAdam, torch.optim.Adam),
    (OffloadedAdagrad, torch.optim.Adagrad), (OffloadedSGD, torch.optim.SGD)])
def test_keywords_are_those_of_torch(ours, theirs):
    known = inspect.signature(theirs).parameters
    mine = set(inspect.signature(ours).parameters) | set(
        inspect.signature(OffloadedOptimizer).parameters)
    assert set(known) <= mine
    off = {name: value.default for name, value in known.items()
           if name in ("amsgrad", "capturable", "differentiable", "maximize", "nesterov")}
    for hints in ({"foreach": True}, {"foreach": False, "fused": False}, {"fused": True},
                  {"foreach": None, "fused": None}):
        nets = [make(ours, **off, **hints), make(theirs, **off, **hints)]
        for each in nets:
            train(*each, 3)
        assert near(nets[0][0].parameters(), nets[1][0].parameters())
    for name in off:
        with pytest.raises(spillway.NotSupportedError, match=f"{name}=True is not supported"):
            make(ours, **{name: True})


def in_a_group(kind, word, value):
    kind([{"params": [torch.nn.Parameter(torch.ones(3))], word: value}])


def in_a_group_that_is_added(kind, word, value):
    optimizer = kind([torch.nn.Parameter(torch.ones(3))])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], word: value})


def by_assignment(kind, word, value):
    net, optimizer = make(kind)
    train(net, optimizer, 1)
    optimizer.param_groups[0][word] = value
    before = [parameter.detach().clone() for parameter in net.parameters()]
    try:
        train(net, optimizer, 1)
    finally:
        assert all(map(torch.equal, net.parameters(), before))


def in_a_state(kind, word, value):
    net, optimizer = make(kind)
    train(net, optimizer, 1)
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "param_groups": [{**state["param_groups"][0],
                                                          word: value}]})


@pytest.mark.parametrize("way", [in_a_group, in_a_group_that_is_added, by_assignment, in_a_state])
@pytest.mark.parametrize("kind", [OffloadedAdamW, OffloadedAdam, OffloadedAdagrad, OffloadedLion,
                                  OffloadedSGD])
def test_what_no_optimizer_takes_no_group_has(kind, way):
    words = dict.fromkeys(("amsgrad", "capturable", "differentiable", "maximize", "nesterov"), True)
    words["dampening"] = 0.5
    if kind not in (OffloadedAdamW, OffloadedAdam):
        words["decoupled_weight_decay"] = not kind.decoupled
    for word, value in words.items():
        with pytest.raises(spillway.NotSupportedError, match=f"{word}={value}, which is not supp"):
            way(kind, word, value)


def test_a_group_of_adamw_may_have_the_weight_decay_of_adam():
    def two(kind):
        torch.manual_seed(4)
        net = torch.nn.Linear(8, 3)
        return net, kind([{"params": [net.weight], "decoupled_weight_decay": False},
                          {"params": [net.bias]}], lr=1e-2, weight_decay=0.3)

    nets = [two(OffloadedAdamW), two(torch.optim.AdamW)]
    for each in nets:
        train(*each, 5)
    assert near(nets[0][0].parameters(), nets[1][0].parameters())


def test_adam_with_decoupled_weight_decay_is_adamw():
    nets = [make(OffloadedAdam, decoupled_weight_decay=True, weight_decay=0.3),
            make(torch.optim.AdamW, weight_decay=0.3)]
    for each in nets:
        train(*each, 5)
    assert near(nets[0][0].parameters(), nets[1][0].parameters())
    make(OffloadedAdam, decoupled_weight_decay=True)[1].load_state_dict(nets[1][1].state_dict())


def test_an_older_version_of_torch_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.3.1+cu121"))
    with pytest.raises(ImportError, match="2.4 or later, and this is 2.3.1"):
        importlib.reload(spillway.torch)
