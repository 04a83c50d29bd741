"""Deferred updates beside what no submodule's forward pass waits for: weights that others use,
modules that were compiled before, `state_dict`, and whatever else reads or writes a parameter."""
import copy
import io
import pickle

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
    """Uses the weights of submodules before it calls them, in an operation that saves none."""

    def forward(self, x):
        early = torch.tanh(x @ self.layers[-1].weight * 0.1)
        return super().forward(x) + early


class UsesInHook(Calls):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.register_forward_pre_hook(
                lambda layer, inputs: inputs[0] + layer.weight.sum(dim=0) * 0.01)


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def run(kind, deferred, compiled=False, warm=False, other=False, streamed=False):
    torch._dynamo.reset()
    model = kind()
    if streamed:
        offload_model(model, "64MiB")
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


@pytest.mark.parametrize("kind", [Calls, Uses, UsesInEvaluation, UsesFirst])
@pytest.mark.parametrize("how", [{}, {"compiled": True}, {"compiled": True, "warm": True},
                                 {"compiled": True, "other": True}])
def test_weights_that_others_use_and_compiled_models_wait_for_their_updates(kind, how):
    assert same(run(kind, True, **how), run(kind, False, **how))


@pytest.mark.parametrize("kind", [UsesFirst, UsesInHook])
def test_weights_that_are_read_before_their_streamed_block_runs_wait_for_their_updates(kind):
    assert same(run(kind, True, streamed=True), run(kind, False))


class UsesAnother(torch.nn.Linear):
    """Reads the weight of a layer that is not its own, if it has one."""

    other = None

    def forward(self, x):
        return super().forward(x if self.other is None else x @ self.other[0].weight)


def test_a_weight_of_a_block_that_another_block_reads_while_its_update_runs_is_refused():
    model = Calls()
    model.layers = torch.nn.ModuleList(UsesAnother(WIDTH, WIDTH) for _ in range(LAYERS))
    model.layers[0].other = (model.layers[2],)
    offload_model(model, "64MiB")
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)
    step_of(model, optimizer, 0)
    with pytest.raises(spillway.InvalidArgumentError, match="is of block 2, and was used in anoth"):
        step_of(model, optimizer, 1)
    optimizer.synchronize()
    step_of(model, optimizer, 1)


def test_attention_of_torch_uses_the_weights_of_a_submodule():
    runs = []
    for deferred in (True, False):
        torch.manual_seed(0)
        model = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        optimizer = OffloadedAdamW(model.parameters(), deferred=model if deferred else None)
        outputs = []
        for step in range(5):
            model(batch(step).view(2, 8, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():  # in one operation, where nothing asks about a weight
                outputs.append(model.eval()(batch(step).view(2, 8, 256)))
            model.train()
        optimizer.synchronize()
        runs.append([parameter.detach().clone() for parameter in model.parameters()] + outputs)
    assert same(*runs)


def step_of(model, optimizer, number, penalty=None):
    optimizer.zero_grad()
    loss = torch.zeros(()) if penalty is None else penalty(model) * 0.1
    (loss + model(batch(number)).square().mean()).backward()
    optimizer.step()


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_computed_of_parameters_beside_a_forward_pass_is_of_after_the_update(streamed):
    models, outputs = [Calls(), Calls()], [[], []]
    if streamed:
        offload_model(models[0], "64MiB")
    optimizers = [OffloadedAdamW(models[0].parameters(), deferred=models[0]),
                  torch.optim.AdamW(models[1].parameters())]
    for number in range(3):
        for model, optimizer, values in zip(models, optimizers, outputs, strict=True):
            step_of(model, optimizer, number,
                    lambda model: (batch(7) @ model.layers[-1].weight).square().mean())
            with torch.no_grad():
                values.append(model.layers[-1].weight[0].clone())
                values.append(torch._foreach_norm(list(model.layers[-1].parameters()))[0])
    for ours, theirs in zip(*outputs, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def hidden(model):
    """Asks torch about a parameter that is not among its arguments."""
    weight = model.layers[-1].weight

    def double(x):
        if torch.overrides.has_torch_function((weight,)):
            return torch.overrides.handle_torch_function(double, (weight,), x)
        return weight * x

    return double(2)


READS = {
    "an_array": lambda model: torch.from_numpy(model.layers[-1].weight.detach().numpy()),
    "dlpack": lambda model: torch.from_dlpack(model.layers[-1].weight.detach()),
    "a_copy_of_its_layer": lambda model: copy.deepcopy(model.layers[-1]).weight,
    "a_copy": lambda model: copy.deepcopy(model.layers[-1].weight),
    "pickle": lambda model: pickle.loads(pickle.dumps(model.layers[-1].weight)),
    "a_state_with_variables": lambda model: model.state_dict(
        keep_vars=True)["layers.2.weight"].clone(),
    "another_of_its_type": lambda model: type(model.layers[-1].weight)(torch.zeros(2)),
    "an_operator": lambda model: torch.ops.aten.clone(model.layers[-1].weight),
    "a_functional_call": lambda model: torch.func.functional_call(
        torch.nn.Linear(WIDTH, WIDTH), dict(model.layers[-1].named_parameters()),
        torch.eye(WIDTH)),
    "an_argument_that_is_hidden": hidden}


@pytest.mark.parametrize("way", READS)
def test_every_way_to_read_a_parameter_waits_for_its_update(way):
    found = []
    for deferred in (True, False):
        model = Calls()
        optimizer = OffloadedAdamW(model.parameters(), deferred=model if deferred else None,
                                   threads=1, isa="scalar")
        step_of(model, optimizer, 0)
        value = READS[way](model)
        assert type(value) in (torch.Tensor, torch.nn.Parameter)
        found.append(value.detach().clone())
        optimizer.synchronize()
        assert {type(parameter) for parameter in model.parameters()} == {torch.nn.Parameter}
    assert torch.equal(*found)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_written_while_an_update_runs_comes_after_it(streamed):
    runs = []
    for deferred in (True, False):
        model = Calls()
        if streamed:
            offload_model(model, "64MiB")
        optimizer = OffloadedAdamW(model.parameters(), deferred=model if deferred else None)
        for number in range(3):
            step_of(model, optimizer, number)
            with torch.no_grad():
                model.layers[-1].weight.clamp_(-0.02, 0.02)
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        step_of(model, optimizer, 3)
        optimizer.synchronize()
        runs.append([parameter.detach().clone() for parameter in model.parameters()])
    assert same(*runs)


def test_what_reads_and_writes_no_value_does_not_wait():
    model = Calls()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)
    step_of(model, optimizer, 0)
    model.zero_grad()
    optimizer.zero_grad()
    assert sum(parameter.numel() for parameter in model.parameters()
               if parameter.requires_grad and parameter.dtype == torch.float32) == (
        LAYERS * WIDTH * (WIDTH + 1))
    (shard,) = optimizer._shards
    assert len(shard.deciding) == 2 * LAYERS
    model.layers[1].weight.sum()
    assert len(shard.deciding) == 2 * LAYERS - 1


def test_what_was_used_unseen_before_its_update_was_waited_for_is_refused():
    model = Calls()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)

    def train(used):
        optimizer.zero_grad()
        used().square().mean().backward()
        optimizer.step()

    def unseen():
        with torch._C.DisableTorchFunctionSubclass():  # as an extension in C++ that asks nobody
            return Uses.forward(model, batch(1))

    train(lambda: model(batch(0)))
    with pytest.raises(spillway.InvalidArgumentError, match=r"parameter . .*its deferred update"):
        train(unseen)
    optimizer.synchronize()
    train(unseen)
    optimizer.synchronize()
    expected = Calls()
    reference = OffloadedAdamW(expected.parameters())
    for step in range(2):
        reference.zero_grad()
        expected(batch(step)).square().mean().backward()
        reference.step()
    assert same(model.parameters(), expected.parameters())


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
