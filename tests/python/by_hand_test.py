"""What a program does to an optimizer by hand: it acts as with torch, or it is refused by name."""
import collections
import copy

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, offload_model

SIZES = (30, 7, 11)


def parameters():
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]


def give_gradients(tensors, step):
    generator = torch.Generator().manual_seed(step)
    for tensor in tensors:
        tensor.grad = None
        (tensor * torch.randn(tensor.shape, generator=generator)).sum().backward()


def run(tensors, optimizer, steps):
    for step in steps:
        give_gradients(tensors, step)
        optimizer.step()
        optimizer.zero_grad()


def near(some, others, bound=1e-6):
    return all(float((a.detach() - b.detach()).abs().max()) < bound
               for a, b in zip(some, others, strict=True))


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def grouped(tensors):
    return [{"params": tensors[:2], "lr": 1e-2}, {"params": tensors[2:], "lr": 1e-3}]


def append(groups):
    groups[0]["params"].append(torch.nn.Parameter(torch.ones(3)))


def replace(groups):
    groups[0]["params"][1] = torch.nn.Parameter(torch.ones(SIZES[1]))


def pop(groups):
    groups[0]["params"].pop()


def move(groups):
    groups[1]["params"].append(groups[0]["params"].pop())


def reverse(groups):
    groups.reverse()


def remove(groups):
    del groups[1]


@pytest.mark.parametrize("edit", [append, replace, pop, move, reverse, remove])
def test_lists_of_groups_that_were_edited_are_refused(tmp_path, edit):
    tensors = parameters()
    optimizer = OffloadedAdamW(grouped(tensors))
    run(tensors, optimizer, range(2))
    before = [tensor.detach().clone() for tensor in tensors]
    state = copy.deepcopy(optimizer.state_dict())
    groups = list(optimizer.param_groups)
    lists = [list(group["params"]) for group in groups]
    edit(optimizer.param_groups)
    give_gradients(tensors, 2)
    for call in (optimizer.step, optimizer.state_dict, lambda: optimizer.clip_grad_norm_(1.0),
                 lambda: optimizer.load_state_dict(state), lambda: optimizer.save(tmp_path / "a"),
                 lambda: optimizer.load(tmp_path / "a"),
                 lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(before[0])]})):
        with pytest.raises(spillway.InvalidArgumentError, match=r"add_param_group\(\).*make a new"):
            call()
    assert equal(tensors, before)
    optimizer.param_groups[:] = groups
    for group, each in zip(groups, lists, strict=True):
        group["params"] = each
    optimizer.step()
    assert not equal(tensors, before)


def assign(optimizer, _tensors):
    optimizer.state = collections.defaultdict(dict)


def scale(optimizer, tensors):
    for tensor in tensors:
        for value in optimizer.state[tensor].values():
            value.mul_(0.1)


def scale_values(optimizer, _tensors):
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


STATE = {
    "clear": lambda optimizer, _: optimizer.state.clear(),
    "assign": assign,
    "pop": lambda optimizer, tensors: optimizer.state.pop(tensors[0], None),
    "delete": lambda optimizer, tensors: optimizer.state.__delitem__(tensors[0]),
    "set": lambda optimizer, tensors: optimizer.state.update({tensors[0]: {}}),
    "scale": scale, "scale values": scale_values}


@pytest.mark.parametrize("edit", STATE)
def test_entries_of_the_state_are_refused_and_a_state_dict_resets_them(edit):
    tensors, others = parameters(), parameters()
    optimizer, reference = OffloadedAdamW(tensors), torch.optim.AdamW(others)
    assert len(optimizer.state) == 0 and tensors[0] not in optimizer.state
    run(tensors, optimizer, range(3))
    run(others, reference, range(3))
    assert set(optimizer.state) == set(tensors) and tensors[0] in optimizer.state
    with pytest.raises(spillway.NotSupportedError, match=r"load_state_dict\(\).*resets"):
        STATE[edit](optimizer, tensors)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    reference.state.clear()
    run(tensors, optimizer, range(3, 6))
    run(others, reference, range(3, 6))
    assert near(tensors, others)


class Layers(torch.nn.Module):
    """Two layers of which a pass may leave out the second."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, both=True):
        return (self.second(self.first(x)) if both else self.first(x)).square().mean()


def batch(step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def zero_one(net):
    net.second.weight.grad.zero_()


def zero_module(net):
    net.second.zero_grad(set_to_none=False)


def zero_all(net):
    for parameter in net.parameters():
        parameter.grad.zero_()


def zero_and_go_on(net):
    net.zero_grad(set_to_none=False)
    net(batch(40), both=False).backward()


def zero_twice(net):
    zero_and_go_on(net)
    net.first.bias.grad.zero_()


def zero_and_drop(net):
    zero_and_go_on(net)
    net.second.zero_grad()


@pytest.mark.parametrize("steps", [1, None])
@pytest.mark.parametrize("zero", [zero_one, zero_module, zero_all, zero_and_go_on, zero_twice,
                                  zero_and_drop])
def test_gradients_that_are_set_to_zero_are_zeros(zero, steps):
    trained = []
    for kind, options in ((torch.optim.AdamW, {}),
                          (OffloadedAdamW, {"accumulation_steps": steps})):
        net = Layers()
        optimizer = kind(net.parameters(), lr=0.05, weight_decay=0.3, **options)
        try:
            for step in range(4):
                net(batch(step)).backward()
                if step:
                    zero(net)
                optimizer.step()
                optimizer.zero_grad()
        except spillway.NotSupportedError as error:
            assert steps == 1 and "accumulation_steps=None" in str(error)
            return
        trained.append(list(net.parameters()))
    assert near(*trained, 1e-5)


def exchange(net):
    first, second = net.first.weight, net.second.weight
    first.grad, second.grad = second.grad, first.grad


@pytest.mark.parametrize("steps", [1, None])
def test_gradients_that_have_left_are_no_other_parameters(steps):
    net, before = Layers(), Layers()
    optimizer = OffloadedAdamW(net.parameters(), accumulation_steps=steps, max_norm=1.0)
    net(batch(0)).backward()
    exchange(net)
    with pytest.raises(spillway.NotSupportedError, match="is that of"):
        optimizer.step()
    assert equal(net.parameters(), before.parameters())
    optimizer.zero_grad()
    net(batch(1)).backward()
    optimizer.step()
    assert not equal(net.parameters(), before.parameters())


def test_gradients_that_an_ended_optimizer_had_are_missed():
    net, other = Layers(), Layers()
    first = OffloadedAdamW(net.parameters())
    net(batch(0)).backward()
    optimizer = OffloadedAdamW(net.parameters())
    with pytest.raises(spillway.InvalidArgumentError, match="gone with.* its optimizer.*zero_grad"):
        optimizer.step()
    with pytest.raises(spillway.InvalidArgumentError, match="gone with.* its optimizer.*zero_grad"):
        net(batch(0)).backward()
    for each, of in ((optimizer, net), (OffloadedAdamW(other.parameters()), other)):
        each.zero_grad()
        of(batch(1)).backward()
        each.step()
    assert equal(net.parameters(), other.parameters())
    del first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_momentum_is_not_raised_after_steps_without(tmp_path, dtype):
    tensors, others = ([torch.nn.Parameter(each.detach().to(dtype)) for each in parameters()]
                       for _ in range(2))
    optimizer = OffloadedSGD(grouped(tensors), momentum=0.9)
    reference = torch.optim.SGD(grouped(others), momentum=0.9)
    optimizer.save(tmp_path / "with")
    for momentum in (0.0, 0.9, 0.5, 0.0):  # before the first step too
        for each in (optimizer, reference):
            each.param_groups[1]["momentum"] = momentum
        if momentum:
            run(tensors, optimizer, range(2))
            run(others, reference, range(2))
    assert near(tensors, others, 1e-6 if dtype == torch.float32 else 0.05)
    give_gradients(tensors, 4)
    optimizer.step()
    optimizer.save(tmp_path / "without")
    state = copy.deepcopy(optimizer.state_dict())
    assert "momentum_buffer" not in state["state"][2] and "momentum_buffer" in state["state"][1]
    before = [tensor.detach().clone() for tensor in tensors]
    for _ in range(2):
        optimizer.param_groups[1]["momentum"] = 0.9
        give_gradients(tensors, 5)
        with pytest.raises(spillway.NotSupportedError, match=r"group 1 is 0.9 after steps with 0"):
            optimizer.step()
        assert equal(tensors, before)
        optimizer.zero_grad()
        optimizer.load(tmp_path / "without")
        assert optimizer.param_groups[1]["momentum"] == 0
    optimizer.load_state_dict(state)
    assert ("master" in optimizer.state_dict()["state"].get(2, {})) == (dtype != torch.float32)
    optimizer.param_groups[1]["momentum"] = 0.9
    run(tensors, optimizer, range(5, 7))
    assert not equal(tensors, before)
    optimizer.load(tmp_path / "with")
    run(tensors, optimizer, range(2))


@pytest.mark.parametrize("deferred", [False, True])
def test_a_backward_pass_through_a_graph_of_before_a_step_is_refused(deferred):
    """That of a generator whose loss was computed before the step of its critic."""
    torch.manual_seed(0)
    generator, critic = torch.nn.Linear(8, 8), Layers()
    optimizer = OffloadedAdamW(critic.parameters(), accumulation_steps=None,
                               deferred=critic if deferred else None)
    loss = critic(generator(batch(0)))
    critic(batch(1)).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.zero_grad()
    loss = critic(generator(batch(0)))
    optimizer.step()  # without a gradient, which changes nothing
    loss.backward()
    optimizer.step()


def test_parameters_that_no_forward_pass_waits_for_are_refused():
    net, other = Layers(), Layers()
    values = net.first.weight.data_ptr()
    with pytest.raises(spillway.InvalidArgumentError, match="parameter 4 of group 0 was no param"):
        OffloadedAdamW([*net.parameters(), *other.parameters()], deferred=net)
    assert net.first.weight.data_ptr() == values
    net.second.requires_grad_(False)
    optimizer = OffloadedAdamW(net.parameters(), deferred=net)
    net.second.requires_grad_(True)  # which joins
    net(batch(0)).backward()
    optimizer.step()
    net.third = torch.nn.Linear(8, 8)
    with pytest.raises(spillway.InvalidArgumentError, match="parameter 0 of group 1 was no param"):
        optimizer.add_param_group({"params": net.third.parameters()})
    net(batch(1)).backward()
    optimizer.step()
    assert int(optimizer.state_dict()["state"][3]["step"]) == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_values_that_are_set_as_data_do_not_reach_a_backup_unseen(streamed):
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    if streamed:
        offload_model(net, "200KB")
    optimizer = OffloadedAdamW(net.parameters(), lr=0.01)

    def learn(step):
        net(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    learn(0)
    values = [parameter.detach().clone() for parameter in net.parameters()]
    backup = [parameter.data for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.data = torch.ones_like(parameter)
    with pytest.raises(spillway.InvalidArgumentError, match=r"backup = p.data.clone\(\)"):
        net(batch(1)).square().mean().backward()
    for parameter, value in zip(net.parameters(), backup, strict=True):
        parameter.data = value
    optimizer.zero_grad()
    assert equal(net.parameters(), values)
    learn(1)
    assert not equal(net.parameters(), values)
    values = [parameter.detach().clone() for parameter in net.parameters()]
    backup = [each.clone() for each in values]
    del value  # which is what the last one's data was
    for parameter in net.parameters():
        parameter.data = torch.ones_like(parameter)
    with torch.no_grad():
        assert torch.equal(net[2](torch.zeros(1, 8)), torch.ones(1, 8))
    for parameter, value in zip(net.parameters(), backup, strict=True):
        parameter.data = value
    net(batch(1))
    assert equal(net.parameters(), values)
    learn(2)
