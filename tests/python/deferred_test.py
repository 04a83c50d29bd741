"""Deferred updates beside what no submodule's forward pass waits for: weights that others use,
modules that were compiled before, and `state_dict`."""
import io

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, offload_model

WIDTH, LAYERS = 1024, 3  # an update takes longer than the first operations of a forward pass


class Calls(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Uses(Calls):
    """Uses the weights of its submodules, which it does not call."""

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(torch.nn.functional.linear(x, layer.weight, layer.bias))
        return x


class UsesInEvaluation(Calls):
    """Calls its submodules while it is trained, and uses their weights later."""

    def forward(self, x):
        return Calls.forward(self, x) if self.training else Uses.forward(self, x)


class UsesFirst(Calls):
    def forward(self, x):
        scale = sum(layer.weight.square().mean() for layer in self.layers)
        return super().forward(x) * scale


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def run(kind, deferred, compiled=False, warm=False, other=False):
    torch._dynamo.reset()
    model = kind()
    called = torch.compile(model, backend="eager") if compiled else model
    if warm:
        called(batch(0)).sum().backward()
        model.zero_grad()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model if deferred else None)
    if other:
        torch.compile(kind(), backend="eager")(batch(0)).sum().backward()
    outputs = []
    for step in range(4):
        optimizer.zero_grad()
        called(batch(step)).square().mean().backward()
        optimizer.step()
        if kind is UsesInEvaluation:
            with torch.no_grad():
                outputs.append(called.eval()(batch(step)))
            called.train()
    optimizer.synchronize()
    return [parameter.detach().clone() for parameter in model.parameters()] + outputs


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", [Calls, Uses, UsesInEvaluation])
@pytest.mark.parametrize("how", [{}, {"compiled": True}, {"compiled": True, "warm": True},
                                 {"compiled": True, "other": True}])
def test_weights_that_others_use_and_compiled_models_wait_for_their_updates(kind, how):
    assert same(run(kind, True, **how), run(kind, False, **how))


def test_attention_of_torch_uses_the_weights_of_a_submodule():
    runs = []
    for deferred in (True, False):
        torch.manual_seed(0)
        model = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        optimizer = OffloadedAdamW(model.parameters(), deferred=model if deferred else None)
        for step in range(5):
            model(batch(step).view(2, 8, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.synchronize()
        runs.append([parameter.detach().clone() for parameter in model.parameters()])
    assert same(*runs)


def test_what_was_used_before_its_update_was_waited_for_is_refused():
    model = Calls()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)

    def train(used):
        optimizer.zero_grad()
        used().square().mean().backward()
        optimizer.step()

    train(lambda: model(batch(0)))
    with pytest.raises(spillway.InvalidArgumentError, match=r"parameter . .*its deferred update"):
        train(lambda: Uses.forward(model, batch(1)))
    optimizer.synchronize()
    train(lambda: Uses.forward(model, batch(1)))
    optimizer.synchronize()
    expected = Calls()
    reference = OffloadedAdamW(expected.parameters())
    for step in range(2):
        reference.zero_grad()
        expected(batch(step)).square().mean().backward()
        reference.step()
    assert same(model.parameters(), expected.parameters())
    model = UsesFirst()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)
    train(lambda: model(batch(0)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(lambda: model(batch(1)))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.layers[-1]])
def test_state_dict_has_the_values_of_after_the_update(part, streamed):
    model = Calls()
    if streamed:
        offload_model(model, "64MiB")
    optimizer = OffloadedAdamW(model.parameters(), deferred=model, threads=1, isa="scalar")
    model(batch(0)).square().mean().backward()
    before = [parameter.detach().clone() for parameter in part(model).parameters()]
    optimizer.step()  # its update takes ten times as long as a copy of the parameters
    file = io.BytesIO()
    torch.save(part(model).state_dict(), file)
    optimizer.synchronize()
    saved = list(torch.load(io.BytesIO(file.getvalue())).values())
    assert same(saved, part(model).parameters()) and not same(saved, before)
    optimizer.close()
    assert same(part(model).state_dict().values(), saved)
