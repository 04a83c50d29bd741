"""Parameters that get no gradient in a step, and closures, as torch's optimizers take them."""
import copy

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdagrad, OffloadedAdam, OffloadedAdamW, OffloadedSGD

PAIRS = [
    (OffloadedAdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (OffloadedAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (OffloadedAdagrad, torch.optim.Adagrad, {"lr": 0.05, "weight_decay": 0.1}),
    (OffloadedSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1})]


class Experts(torch.nn.Module):
    """Layers of which a step uses some; the first one is there for all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 8)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, chosen):
        x = self.first(x)
        for number in chosen:
            x = x + torch.tanh(self.experts[number](x))
        return x.pow(2).mean()


#: The experts of each step: they make 5, 3, 2 and 0 updates.
CHOSEN = ((0,), (0, 1), (), (0, 1, 2), (0,), (2, 1, 0))


def train(model, optimizer, steps, passes=1):
    for step in steps:
        optimizer.zero_grad()
        for number in range(passes):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + number))
            model(x, CHOSEN[step] if number == 0 else ()).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def close(some, others):
    return all(torch.allclose(a.detach(), b.detach(), atol=2e-6) for a, b in
               zip(some, others, strict=True))


@pytest.mark.parametrize("ours, theirs, arguments", PAIRS)
@pytest.mark.parametrize("passes", [1, 2])
def test_they_are_skipped_as_torch_skips_them(ours, theirs, arguments, passes):
    mine, reference = Experts(), Experts()
    optimizer = ours(mine.parameters(), accumulation_steps=passes, **arguments)
    other = theirs(reference.parameters(), **arguments)
    assert close(train(mine, optimizer, range(6), passes),
                 train(reference, other, range(6), passes))
    state, expected = optimizer.state_dict()["state"], other.state_dict()["state"]
    for number, of_parameter in expected.items():
        if number not in state:
            assert float(of_parameter["step"]) == 0.0  # Adagrad of torch makes state at the start
            continue
        for name, value in of_parameter.items():
            if value is not None:
                assert torch.allclose(state[number][name], value, atol=1e-6), (number, name)


def test_tiers_formats_and_deferred_updates_skip_alike(tmp_path):
    runs = {}
    for name, options in (("memory", {}), ("disk", {"nvme": tmp_path}),
                          ("split", {"state_format": "split", "nvme": tmp_path}),
                          ("deferred", {"deferred": True})):
        model = Experts().bfloat16()
        more = {**options, **({"deferred": model} if "deferred" in options else {})}
        optimizer = OffloadedAdamW(model.parameters(), lr=0.01, **more)
        for step in range(6):
            optimizer.zero_grad()
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).bfloat16()
            model(x, CHOSEN[step]).backward()
            optimizer.step()
        optimizer.synchronize()
        runs[name] = [parameter.detach().clone() for parameter in model.parameters()]
    for name, values in runs.items():
        assert all(torch.equal(a, b) for a, b in zip(values, runs["memory"], strict=True)), name


@pytest.mark.parametrize("state_format", ["fp32", "bf16", "int8"])
def test_a_skipped_parameter_keeps_every_bit(state_format):
    model = Experts().bfloat16()
    optimizer = OffloadedAdamW(model.parameters(), lr=0.01, state_format=state_format)

    def step(number):
        optimizer.zero_grad()
        x = torch.ones(1, 8, dtype=torch.bfloat16)
        model(x, (number,)).backward()
        optimizer.step()

    step(1)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    kept = model.experts[1].weight.detach().clone()
    step(2)
    after = optimizer.state_dict()["state"]
    assert torch.equal(model.experts[1].weight, kept)
    assert all(torch.equal(before[4][name], after[4][name]) for name in before[4])
    assert not torch.equal(before[0]["exp_avg"], after[0]["exp_avg"])


@pytest.mark.parametrize("how", ["state_dict", "save"])
def test_numbers_of_updates_are_part_of_the_state(tmp_path, how):
    whole = Experts()
    expected = train(whole, OffloadedAdamW(whole.parameters(), lr=0.01), range(6))
    model = Experts()
    first = OffloadedAdamW(model.parameters(), lr=0.01)
    train(model, first, range(4))
    resumed = Experts()
    resumed.load_state_dict(model.state_dict())
    second = OffloadedAdamW(resumed.parameters(), lr=0.01)
    if how == "save":
        first.save(tmp_path / "saved")
        second.load(tmp_path / "saved")
    else:
        second.load_state_dict(first.state_dict())
    again = train(resumed, second, range(4, 6))
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


def test_a_step_without_gradients_does_nothing():
    model = Experts()
    optimizer = OffloadedAdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    values = train(model, optimizer, range(2))
    optimizer.zero_grad()
    assert float(optimizer.clip_grad_norm_(1.0)) == 0.0
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))
    expected = Experts()
    assert close(train(model, optimizer, range(3, 4)),
                 train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01,
                                                   weight_decay=0.1), (0, 1, 3)))


def test_zeros_and_refusal_by_name():
    zeros, reference = Experts(), Experts()
    other = torch.optim.AdamW(reference.parameters(), lr=0.01)
    train(zeros, OffloadedAdamW(zeros.parameters(), lr=0.01, missing="zero"), range(3))
    for step in range(3):
        for parameter in reference.parameters():
            parameter.grad = torch.zeros_like(parameter)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step))
        reference(x, CHOSEN[step]).backward()
        other.step()
    assert close(zeros.parameters(), reference.parameters())
    refusing = Experts()
    with pytest.raises(spillway.InvalidArgumentError, match="parameter 4 of group 0"):
        train(refusing, OffloadedAdamW(refusing.parameters(), missing="refuse"), range(1))


def test_what_skipping_cannot_do_is_refused():
    model = Experts()
    with pytest.raises(spillway.NotSupportedError, match="has no gradient, and with lr_decay"):
        train(model, OffloadedAdagrad(model.parameters(), lr_decay=0.1), range(1))
    optimizer = OffloadedAdamW(model.parameters())
    with pytest.raises(spillway.NotSupportedError, match="set_to_none=False"):
        optimizer.zero_grad(set_to_none=False)
    OffloadedAdamW(Experts().parameters(), missing="zero").zero_grad(set_to_none=False)


def test_a_closure_computes_the_gradients_of_its_step():
    mine, reference = Experts(), Experts()
    losses = []
    for model, kind in ((mine, OffloadedAdamW), (reference, torch.optim.AdamW)):
        optimizer = kind(model.parameters(), lr=0.01)
        losses.append([])
        for step in range(5):
            def closure(model=model, optimizer=optimizer, step=step):
                optimizer.zero_grad()
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
                loss = model(x, (0,))
                loss.backward()
                return loss
            with torch.no_grad():  # some loops call step so; the closure has gradients still
                losses[-1].append(float(optimizer.step(closure)))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0][-1] < losses[0][0]
    assert close(mine.parameters(), reference.parameters())
