"""Idioms of training loops: what programs give an optimizer and a state, and where they call it."""
import copy

import numpy
import pytest
import torch
from idioms import RESIDENT, Net, Table, check, loss_of, train
from torch.nn import functional

import spillway
from spillway.torch import OffloadedAdamW

table = Table()
KINDS = ("memory", "streamed deferred")


# What an optimizer is given.

@table.idiom(settings=RESIDENT)
def names_that_several_groups_have(run):
    net = run.net()
    groups = [{"params": list(block.linear.named_parameters())} for block in net.blocks]
    optimizer = run.make(net, groups)
    train(net, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.add_param_group({"params": net.head.named_parameters()})
    train(net, optimizer, first=2)
    return net


@table.idiom(settings=RESIDENT)
def groups_without_parameters(run):
    net = run.net()
    optimizer = run.make(net, [{"params": []}, {"params": net.parameters()}, {"params": []}])
    train(net, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(net, optimizer, first=2)
    return net


@table.idiom(settings=RESIDENT)
def a_number_and_nothing_as_parameters(run):
    net = torch.nn.Module()
    net.scale = torch.nn.Parameter(torch.tensor(2.0))
    net.none = torch.nn.Parameter(torch.ones(0, 3))
    optimizer = run.make(net)
    for _ in range(3):
        optimizer.zero_grad()
        (net.scale.square() + net.none.sum()).backward()
        optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return net.scale


@table.idiom(settings=KINDS)
def rates_of_numpy_and_betas_in_a_list(run):
    net, optimizer = run.net_and_optimizer(lr=numpy.float64(1e-2), betas=[0.8, 0.9])
    optimizer.param_groups[0]["lr"] = numpy.float32(2e-2)
    train(net, optimizer, steps=3)
    return net


@table.idiom(settings=KINDS, refused=(spillway.NotSupportedError, "maximize=True is not supported"))
def maximize(run):
    return run.net_and_optimizer(maximize=True)[0]


def frozen_with_a_gradient(run, freeze):
    weight = freeze(torch.ones(3))
    optimizer = run.make(None, [weight])
    weight.grad = torch.ones(3)
    optimizer.step()
    return weight


FROZEN = (spillway.InvalidArgumentError,
          "parameter 0 of group 0 has a gradient, and needs none.*requires_grad=True")


@table.idiom(settings=("memory", "disk"), refused=FROZEN)
def a_gradient_of_a_tensor_that_needs_none(run):
    return frozen_with_a_gradient(run, lambda values: values)


@table.idiom(settings=("memory", "disk"), refused=FROZEN)
def a_gradient_of_a_frozen_parameter(run):
    return frozen_with_a_gradient(
        run, lambda values: torch.nn.Parameter(values, requires_grad=False))


@table.idiom()
def frozen_with_the_gradient_of_its_last_step(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    optimizer.zero_grad()
    loss_of(net, 2).backward()
    net.head.requires_grad_(False)
    optimizer.step()
    return net


TWICE = (ValueError, "parameter 0 of group 0 and parameter 1 of group 0 are duplicate parameters, "
         ".*update twice in each step: give each parameter once")


@table.idiom(settings=KINDS, refused=TWICE)
def one_parameter_twice_in_a_group(run):
    net = run.net()
    return run.make(net, [net.head.bias, net.head.bias])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_duplicate_in_a_group_has_the_warning_of_torch(frozen):
    weight, other = (torch.nn.Parameter(torch.ones(3), requires_grad=not frozen) for _ in range(2))
    warns = pytest.warns(UserWarning, match="parameter group with duplicate parameters")
    with warns:
        torch.optim.AdamW([weight, weight])
    if frozen:  # nothing is updated, be it twice
        with warns:
            OffloadedAdamW([weight, weight]).step()
        return
    optimizer = OffloadedAdamW([other])
    for refused in (lambda: OffloadedAdamW([weight, weight]),
                    lambda: optimizer.add_param_group({"params": [weight, weight]})):
        with warns, pytest.raises(ValueError, match="are duplicate parameters"):
            refused()
    assert [group["params"] for group in optimizer.param_groups] == [[other]]
    optimizer.add_param_group({"params": [weight]})
    weight.sum().backward()
    optimizer.step()
    assert (weight < 1).all()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, OffloadedAdamW])
def test_one_parameter_in_two_groups_is_refused_as_by_torch(kind):
    words = "some parameters appear in more than one parameter group"
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=words):
        kind([{"params": [weight]}, {"params": [weight], "lr": 1.0}])
    optimizer = kind([weight])
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [weight]})
    weight.sum().backward()
    optimizer.step()
    assert (weight < 1).all() and len(optimizer.param_groups) == 1


# What a state is.

def renumbered(run, numbers):
    """Goes on from a state of torch's whose numbers are not places, as tools of others write it."""
    net = run.net()
    first = torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, first)
    state = copy.deepcopy(first.state_dict())
    group = state["param_groups"][0]
    new = dict(zip(group["params"], numbers(len(group["params"])), strict=True))
    group["params"] = [new[number] for number in group["params"]]
    state["state"] = {new[number]: each for number, each in state["state"].items()}
    optimizer = run.make(net, lr=0.5)
    optimizer.load_state_dict(state)
    train(net, optimizer, first=2)
    return net


@table.idiom(settings=("memory", "disk"))
def numbers_of_a_state_in_another_order(run):
    return renumbered(run, lambda count: reversed(range(count)))


@table.idiom(settings=("memory", "disk"))
def numbers_of_a_state_that_begin_elsewhere(run):
    return renumbered(run, lambda count: range(100, 100 + count))


@table.idiom(settings=("memory",))
def names_in_place_of_numbers(run):
    return renumbered(run, lambda count: (f"parameter {n}" for n in range(count)))


@table.idiom(settings=("memory", "disk", "streamed deferred"))
def a_state_between_accumulated_passes(run):
    net, optimizer = run.net_and_optimizer()
    train(net, optimizer)
    optimizer.zero_grad()
    loss_of(net, 5).backward()
    model, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    loss_of(net, 6).backward()
    optimizer.step()
    again = run.net(seed=7)
    again.load_state_dict(model)
    resumed = run.make(again)
    resumed.load_state_dict(state)
    train(again, resumed, first=7)
    return net, again


@table.idiom(settings=("memory",))
def a_state_without_an_entry(run):
    net = run.net()
    first = torch.optim.AdamW(net.parameters(), lr=1e-2)
    train(net, first)
    state = copy.deepcopy(first.state_dict())
    del state["state"][3]
    state["state"][0]["mine"] = torch.ones(2)
    optimizer = run.make(net)
    optimizer.load_state_dict(state)
    train(net, optimizer, first=2)
    return net


@pytest.mark.parametrize("key", [99, -1, "0", None, (0, 1)])
def test_state_of_no_parameter_is_refused_by_name(key):
    net = Net()
    optimizer = OffloadedAdamW(net.parameters(), lr=1e-2)
    train(net, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][key] = state["state"].pop(0)
    with pytest.raises(spillway.InvalidArgumentError, match="which no group of the state has"):
        optimizer.load_state_dict(state)
    train(net, optimizer)


# Where it is called.

def everything(net, optimizer):
    """The calls of a loop that make tensors of their own."""
    noted = []
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        noted += [p.grad.clone() for p in net.parameters()]
        noted.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        for p in net.parameters():
            p.grad.add_(1e-3)
        loss_of(net, 10 + step).backward()
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    noted += [each["exp_avg"].clone() for each in state["state"].values()]
    assert state["state"][0]["step"].device.type == "cpu"
    return noted


BATCHES = {step: (torch.randn(5, 6, generator=torch.Generator().manual_seed(step)),
                  torch.randn(5, 4, generator=torch.Generator().manual_seed(step)))
           for step in (0, 1, 10, 11)}


def elsewhere(run, context):
    net, optimizer = run.net_and_optimizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idioms.batch", BATCHES.__getitem__)
        with context():
            noted = everything(net, optimizer)
    train(net, optimizer)
    return net, noted


class DefaultDtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


@table.idiom(settings=("memory", "disk", "deferred", "streamed", "streamed deferred"))
def float64_as_the_default_type(run):
    return elsewhere(run, DefaultDtype)


@table.idiom(settings=("memory", "disk", "deferred", "streamed", "streamed deferred"))
def another_default_device(run):
    """A device that the CPU stands for is none that a CPU tensor is on by default."""
    return elsewhere(run, lambda: torch.device("meta"))


@table.idiom(settings=KINDS)
def made_where_another_device_is_the_default(run):
    torch.manual_seed(0)
    net = run.place(Net())
    with torch.device("meta"):
        optimizer = run.make(net)
    train(net, optimizer)
    return net


@table.idiom(settings=KINDS)
def made_in_inference_mode(run):
    net = run.net()
    with torch.inference_mode():
        optimizer = run.make(net)
    train(net, optimizer)
    return net


@table.idiom(settings=KINDS)
def steps_in_inference_mode(run):
    net, optimizer = run.net_and_optimizer()
    for step in range(3):
        loss_of(net, step).backward()
        with torch.inference_mode():
            optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            loss_of(net, 9)
    return net


@table.idiom(settings=("memory", "disk"))
def steps_in_compiled_code(run):
    net, optimizer = run.net_and_optimizer()

    @torch.compile(backend="eager")
    def update(x, target):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return net, [update(*BATCHES[step]).item() for step in (0, 1, 10)]


@table.over_all()
def test_calls(row, setting, tmp_path):
    check(row, setting, tmp_path)
