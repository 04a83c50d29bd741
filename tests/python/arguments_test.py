"""Arguments and settings of groups that no optimizer can have: each is refused by its name, before
anything is made, and what torch refuses is refused here too."""
import decimal
import inspect
import math

import jax.numpy as jnp
import numpy
import pytest
import torch

import spillway
from spillway.jax import offloaded_adamw
from spillway.torch import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedOptimizer,
    OffloadedSGD,
    plan,
)

THEIRS = {OffloadedAdamW: torch.optim.AdamW, OffloadedAdam: torch.optim.Adam,
          OffloadedAdagrad: torch.optim.Adagrad, OffloadedSGD: torch.optim.SGD}
KINDS = [*THEIRS, OffloadedLion]


def weight():
    return torch.nn.Parameter(torch.ones(8))


OPTIONS = [
    {"threads": -1}, {"threads": 1.5}, {"threads": "2"}, {"threads": True}, {"threads": 5000},
    {"threads": 2**32}, {"seed": -1}, {"seed": 2**64}, {"seed": 1.0}, {"seed": None},
    {"accumulation_steps": 0}, {"accumulation_steps": 1.5}, {"accumulation_steps": 2**40},
    {"accumulation_steps": "2"}, {"host_memory": -5}, {"host_memory": [1]},
    {"gradient_memory": "x"}, {"state_format": "x"}, {"state_format": None}, {"isa": 3},
    {"isa": "x"}]


def named(options):
    (name, value), = options.items()
    return f"{name} is .*{value}" if isinstance(value, str) else f"{name} is "


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_is_refused_by_name_before_anything_is_made(tmp_path, options):
    mine = weight()
    place, before = mine.data_ptr(), OffloadedAdamW([mine])
    place = mine.data_ptr()
    with pytest.raises(spillway.InvalidArgumentError, match=named(options)):
        OffloadedAdamW([mine], nvme=tmp_path, **options)
    assert mine.data_ptr() == place and list(tmp_path.iterdir()) == []
    mine.sum().backward()
    before.step()  # it has not ended
    if "seed" not in options:
        with pytest.raises(spillway.InvalidArgumentError, match=named(options)):
            plan(torch.nn.Linear(8, 8), **options)


@pytest.mark.parametrize("options", [
    {"threads": -1}, {"seed": 2**64}, {"state_format": "x"}, {"weight_decay": "x"}, {"b1": 1.5},
    {"eps": -1.0}, {"b2": None}], ids=str)
def test_options_of_jax_are_refused_by_name(options):
    with pytest.raises(spillway.InvalidArgumentError, match=named(options)):
        offloaded_adamw(1e-3, **options).init({"w": jnp.zeros(8)})


def test_numbers_of_numpy_and_torch_are_numbers():
    mine, theirs = weight(), weight()
    one = OffloadedAdamW([mine], lr=torch.tensor(0.01), weight_decay=numpy.float32(0.5),
                         betas=torch.tensor([0.5, 0.75]), eps=torch.tensor(1e-8),
                         threads=numpy.int64(2), seed=numpy.uint64(2**64 - 1),
                         accumulation_steps=numpy.int32(1), host_memory=numpy.int64(2**30))
    other = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.5, betas=(0.5, 0.75), eps=1e-8)
    for each, optimizer in ((mine, one), (theirs, other)):
        each.square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(mine, theirs)


def test_a_rate_that_decays_may_be_any_number():
    weights = []
    for decay in (0.5, decimal.Decimal("0.5"), numpy.float32(0.5)):
        weights.append(weight())
        optimizer = OffloadedAdagrad(weights[-1:], lr_decay=decay)
        for _ in range(2):
            weights[-1].sum().backward()
            optimizer.step()
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def wrong_numbers(kind):
    wrong = [("lr", -1.0), ("weight_decay", -1.0)]
    keys = set(inspect.signature(kind).parameters)
    wrong += [(key, value) for key in ("eps", "lr_decay", "initial_accumulator_value")
              for value in (-1.0, -math.inf) if key in keys]
    wrong += [("momentum", -1.0)] if "momentum" in keys else []
    wrong += [("betas", betas) for betas in ((1.0, 0.9), (0.9, -0.1))] if "betas" in keys else []
    return wrong


@pytest.mark.parametrize("kind, key, value", [
    (kind, key, value) for kind in KINDS for key, value in wrong_numbers(kind)])
def test_what_torch_refuses_is_refused_in_the_constructor(kind, key, value):
    if kind in THEIRS:
        with pytest.raises(ValueError, match="Invalid"):
            THEIRS[kind]([weight()], **{key: value})
    with pytest.raises(spillway.InvalidArgumentError, match=f"^{key} of {kind.__name__} is .*; "):
        kind([weight()], **{key: value})


UNFIT = ("x", None, math.nan, math.inf, [1.0, 2.0], torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_refused_by_name_in_every_way_it_comes(kind):
    keys = [key for key, value in kind([weight()]).defaults.items() if isinstance(value, float)]
    wrong = [(key, value) for key in keys for value in UNFIT]
    if "betas" in kind([weight()]).defaults:
        wrong += [("betas", value) for value in (None, 0.9, (0.9,), (0.9,) * 3, ("a", 0.9),
                                                 iter((0.8, 0.9)), torch.tensor(0.9), {0.8: 0.9})]
    for key, value in wrong:
        with pytest.raises(spillway.InvalidArgumentError, match=f"^{key} of {kind.__name__} is "):
            kind([weight()], **{key: value})
        with pytest.raises(spillway.InvalidArgumentError, match=f"^{key} of a parameter group is "):
            kind([{"params": [weight()], key: value}])
        mine = weight()
        optimizer = kind([mine], lr=0.1)
        mine.sum().backward()
        optimizer.step()
        before, state = mine.detach().clone(), optimizer.state_dict()
        wrong_state = {**state, "param_groups": [{**state["param_groups"][0], key: value}]}
        with pytest.raises(spillway.InvalidArgumentError, match=f"^{key} of a group of the state"):
            optimizer.load_state_dict(wrong_state)
        good, optimizer.param_groups[0][key] = optimizer.param_groups[0][key], value
        mine.sum().backward()
        with pytest.raises(spillway.InvalidArgumentError, match=f"^{key} of group 0 is "):
            optimizer.step()
        assert torch.equal(mine, before)
        optimizer.param_groups[0][key] = good
        optimizer.step()
        assert not torch.equal(mine, before)


@pytest.mark.parametrize("value", [None, "x", 1, numpy.bool_(True)])
def test_what_is_no_flag_is_refused_by_name(value):
    mine = weight()
    with pytest.raises(spillway.InvalidArgumentError, match=r"^bias_correction of a parameter gr"):
        OffloadedAdamW([{"params": [mine], "bias_correction": value}])
    optimizer = OffloadedAdamW([mine])
    optimizer.param_groups[0]["bias_correction"] = value
    mine.sum().backward()
    with pytest.raises(spillway.InvalidArgumentError, match=r"group 0 is .*; it must be True or F"):
        optimizer.step()
    optimizer.param_groups[0]["bias_correction"] = False
    optimizer.step()
    assert not torch.equal(mine, torch.ones(8))


OURS = sorted(set(inspect.signature(OffloadedOptimizer).parameters) - {
    "params", "defaults", "foreach", "fused", "capturable", "differentiable", "maximize"})


@pytest.mark.parametrize("key", OURS)
def test_an_option_of_the_optimizer_is_none_of_a_group(key):
    words = f"{key}=1, which is .* all groups.*OffloadedAdamW"
    with pytest.raises(spillway.InvalidArgumentError, match=words):
        OffloadedAdamW([{"params": [weight()], key: 1}])
    mine = weight()
    optimizer = OffloadedAdamW([mine])
    with pytest.raises(spillway.InvalidArgumentError, match=words):
        optimizer.add_param_group({"params": [weight()], key: 1})
    optimizer.param_groups[0][key] = 1
    mine.sum().backward()
    with pytest.raises(spillway.InvalidArgumentError, match=words):
        optimizer.step()
    del optimizer.param_groups[0][key]
    optimizer.param_groups[0]["mine"] = 1  # what a program notes for itself
    optimizer.step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_stage_without_ranks_is_refused(stage):
    with pytest.raises(spillway.InvalidArgumentError, match=f"stage is {stage}.*no process_group"):
        OffloadedAdamW([weight()], stage=stage)
