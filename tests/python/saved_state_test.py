"""What saves must load: states of all kinds of runs, and what is refused has changed nothing."""
import argparse
import copy
import pickle
import random

import numpy
import pytest
import torch

import spillway
import spillway.torch
from spillway.torch import OffloadedAdagrad, OffloadedAdamW, OffloadedSGD, offload_model
from spillway.torch._shard import Shard

SIZES = (30, 7, 11)


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in SIZES]


def run(tensors, optimizer, steps, trains=range(len(SIZES))):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for number, tensor in enumerate(tensors):
            gradient = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            tensor.grad = gradient if number in trains else None
        optimizer.step()


def near(some, others, bound=1e-6):
    return all(float((a.detach().float() - b.detach().float()).abs().max()) < bound
               for a, b in zip(some, others, strict=True))


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def with_steps_of_their_own():
    """torch's parameters, of which three have made 5, 3 and 2 steps."""
    tensors = parameters()
    optimizer = torch.optim.AdamW(tensors, lr=1e-2)
    for step, trains in enumerate(([0], [0, 1], [0, 2], [0, 1, 2], [0, 1])):
        run(tensors, optimizer, [step], trains)
    return tensors, optimizer


@pytest.mark.parametrize("on_disk", [False, True])
def test_parameters_may_have_made_different_numbers_of_steps(tmp_path, on_disk):
    theirs, reference = with_steps_of_their_own()
    state = copy.deepcopy(reference.state_dict())
    assert [int(state["state"][n]["step"]) for n in range(3)] == [5, 3, 2]
    ours = [torch.nn.Parameter(tensor.detach().clone()) for tensor in theirs]
    options = {"nvme": [tmp_path]} if on_disk else {}
    optimizer = OffloadedAdamW(ours, lr=1.0, **options)
    optimizer.load_state_dict(state)
    again = optimizer.state_dict()
    run(theirs, reference, range(5, 9))
    run(ours, optimizer, range(5, 9))
    assert near(ours, theirs)
    # What this one saves loads too, as a state_dict and as a folder.
    assert [int(again["state"][n]["step"]) for n in range(3)] == [5, 3, 2]
    optimizer.save(tmp_path / "saved")
    third = parameters()
    resumed = OffloadedAdamW(third, lr=1e-2)
    resumed.load(tmp_path / "saved")
    assert equal(third, ours)
    run(third, resumed, range(9, 12))
    run(ours, optimizer, range(9, 12))
    assert equal(third, ours)


def test_gradual_unfreezing_resumes():
    whole = []
    for stops in (False, True):
        tensors = parameters(torch.bfloat16)
        for tensor in tensors[1:]:
            tensor.requires_grad_(False)
        optimizer = OffloadedAdamW(tensors, lr=1e-2)
        run(tensors, optimizer, range(3), [0])
        for tensor in tensors[1:]:
            tensor.requires_grad_(True)
        run(tensors, optimizer, range(3, 5))
        if stops:
            state = copy.deepcopy(optimizer.state_dict())
            tensors = [torch.nn.Parameter(tensor.detach().clone()) for tensor in tensors]
            optimizer = OffloadedAdamW(tensors)
            optimizer.load_state_dict(state)
        run(tensors, optimizer, range(5, 8))
        whole.append(tensors)
    assert equal(*whole)


def test_a_checkpoint_of_other_parts_is_refused(tmp_path):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors[:2])
    optimizer.add_param_group({"params": tensors[2:]})
    run(tensors, optimizer, range(2))
    optimizer.save(tmp_path / "saved")
    with pytest.raises(spillway.InvalidArgumentError, match=r"has 2 part\(s\)"):
        OffloadedAdamW(parameters()).load(tmp_path / "saved")
    again = parameters()
    resumed = OffloadedAdamW(again[:2])
    resumed.add_param_group({"params": again[2:]})
    resumed.load(tmp_path / "saved")
    run(tensors, optimizer, range(2, 4))
    run(again, resumed, range(2, 4))
    assert equal(again, tensors)


@pytest.mark.parametrize("kind, theirs", [(OffloadedAdamW, torch.optim.AdamW),
                                          (OffloadedAdagrad, torch.optim.Adagrad),
                                          (OffloadedSGD, torch.optim.SGD)])
def test_an_empty_state_begins_again(kind, theirs):
    """As a learning-rate finder does."""
    options = {"momentum": 0.9} if theirs is torch.optim.SGD else {}
    tensors, others = parameters(), parameters()
    optimizer, reference = kind(tensors, lr=0.1, **options), theirs(others, lr=0.1, **options)
    for each, of in ((tensors, optimizer), (others, reference)):
        start = copy.deepcopy(of.state_dict())
        run(each, of, range(4))
        of.load_state_dict(start)
        with torch.no_grad():
            for tensor, value in zip(each, parameters(), strict=True):
                tensor.copy_(value)
        run(each, of, range(4, 8))
    assert near(tensors, others, 1e-5)


def test_a_loaded_state_without_step_counts_is_saved_again():
    tensors = parameters()
    reference = torch.optim.SGD(tensors, lr=0.1, momentum=0.9)
    run(tensors, reference, range(2))
    optimizer = OffloadedSGD(parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(reference.state_dict())
    again = optimizer.state_dict()["state"]
    for number in range(len(SIZES)):
        assert torch.equal(again[number]["momentum_buffer"],
                           reference.state_dict()["state"][number]["momentum_buffer"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_saved_has_the_values_that_were_written(tmp_path, dtype, on_disk):
    options = {"state_format": "split" if dtype == torch.bfloat16 else "fp32"}
    tensors = parameters(dtype)
    optimizer = OffloadedAdamW(tensors, **options, **({"nvme": tmp_path} if on_disk else {}))
    run(tensors, optimizer, range(2))
    for value in (5.0, 6.0):
        with torch.no_grad():
            for tensor in tensors[1:]:
                tensor.fill_(value)
        tensors[0].data = torch.full_like(tensors[0], value)
        if value == 5.0:
            optimizer.save(tmp_path / "saved")
        else:
            masters = [state.get("master", torch.tensor(value))
                       for state in optimizer.state_dict()["state"].values()]
            assert all((master - value).abs().max() < 0.02 for master in masters)
    loaded = parameters(dtype)
    OffloadedAdamW(loaded, **options).load(tmp_path / "saved")
    assert all(torch.equal(tensor, torch.full_like(tensor, 5.0)) for tensor in loaded)


@pytest.mark.parametrize("schedule", [
    lambda of: torch.optim.lr_scheduler.StepLR(of, 3, 0.5),
    lambda of: torch.optim.lr_scheduler.OneCycleLR(of, 1e-2, 12),
    lambda of: torch.optim.lr_scheduler.CosineAnnealingLR(of, 12)])
def test_a_schedule_goes_on_from_a_folder(tmp_path, schedule):
    trained, settings = [], []
    for stops in (False, True):
        tensors = parameters()
        optimizer = OffloadedAdamW([{"params": tensors[:1]}, {"params": tensors[1:], "lr": 1e-4}],
                                   lr=1e-2)
        rates = schedule(optimizer)
        optimizer.param_groups[1]["weight_decay"] = 0.3
        optimizer.param_groups[1]["mine"] = object
        for step in range(10):
            if step == 5 and stops:
                optimizer.save(tmp_path / "saved")
                tensors = parameters()
                optimizer = OffloadedAdamW([{"params": tensors[:1]}, {"params": tensors[1:]}])
                state, rates = rates.state_dict(), schedule(optimizer)
                optimizer.load(tmp_path / "saved")
                rates.load_state_dict(state)
            run(tensors, optimizer, [step])
            rates.step()
        trained.append(tensors)
        settings.append([{**group, "params": 0, "mine": 0} for group in optimizer.param_groups])
    assert equal(*trained)
    assert settings[0] == settings[1]


def test_a_folder_without_settings_of_groups_loads(tmp_path):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, lr=1e-2)
    run(tensors, optimizer, range(2))
    optimizer.save(tmp_path / "saved")
    with pytest.raises(spillway.InvalidArgumentError, match=r"has 1 group\(s\) of parameters"):
        named = [[(f"parameter {n} of group 0", p)] for n, p in enumerate(parameters())]
        OffloadedAdamW([{"params": each} for each in named]).load(tmp_path / "saved")
    (tmp_path / "saved" / "groups.json").write_text("[]")
    again = parameters()
    resumed = OffloadedAdamW(again, lr=1e-3)
    with pytest.raises(spillway.CorruptDataError, match="groups.json"):
        resumed.load(tmp_path / "saved")
    (tmp_path / "saved" / "groups.json").unlink()
    resumed.load(tmp_path / "saved")
    assert equal(again, tensors) and resumed.param_groups[0]["lr"] == 1e-3


def broken(change):
    def of(state):
        state = copy.deepcopy(state)
        change(state)
        return state
    return of


def of_adagrad(state):
    for each in state["state"].values():
        each["sum"] = each.pop("exp_avg")


REFUSED = {
    "shape": broken(lambda s: s["state"][2].update(exp_avg=torch.zeros(3))),
    "number": broken(lambda s: s["state"].update({9: s["state"].pop(2)})),
    "kind": broken(of_adagrad),
    "rate": broken(lambda s: s["param_groups"][0].update(lr=-1.0)),
    "amsgrad": broken(lambda s: s["param_groups"][0].update(amsgrad=True)),
    "key": broken(lambda s: s["param_groups"][0].pop("betas")),
    "flag": broken(lambda s: s["param_groups"][0].update(bias_correction=None)),
    "text": broken(lambda s: s["param_groups"][0].update(bias_correction="x")),
    "once": broken(lambda s: s["param_groups"][0].update(betas=iter((0.8, 0.9)))),
    "size": broken(lambda s: s["param_groups"][0]["params"].pop()),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_state_that_is_refused_has_changed_nothing(fault):
    tensors = parameters(torch.bfloat16)
    optimizer = OffloadedAdamW(tensors, lr=1e-2, state_format="split")
    run(tensors, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    values = [tensor.detach().clone() for tensor in tensors]
    other = parameters(torch.bfloat16)
    further = OffloadedAdamW(other, lr=0.5)
    run(other, further, range(2, 7))
    with pytest.raises(spillway.Error):
        optimizer.load_state_dict(REFUSED[fault](further.state_dict()))
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(after["state"][number][name], value)
    assert equal(tensors, values)


def test_what_moves_entries_asks_for_each_parameter_a_few_times(monkeypatch):
    """Lightning does, for each parameter: were all looked through, its time would be quadratic."""
    tensors = [torch.nn.Parameter(torch.ones(2)) for _ in range(40)]
    optimizer = OffloadedAdamW(tensors)
    for tensor in tensors[1:]:
        tensor.grad = torch.ones(2)
    optimizer.step()
    asked, updates = [], Shard.updates
    monkeypatch.setattr(Shard, "updates",
                        lambda shard, index: asked.append(index) or updates(shard, index))
    for parameter, entry in optimizer.state.items():
        optimizer.state[parameter] = entry
    assert len(asked) <= 4 * len(tensors)
    for absent in (tensors[0], torch.ones(2), id(tensors[1]), None, [1]):
        assert absent not in optimizer.state
    assert all(tensor in optimizer.state for tensor in tensors[1:])


def test_a_state_within_a_step_is_refused():
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors)
    run(tensors, optimizer, range(1))
    state = copy.deepcopy(optimizer.state_dict())
    tensors[0].sum().backward()
    with pytest.raises(spillway.InvalidArgumentError, match=r"zero_grad\(\) before"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("copies", [
    pickle.dumps, copy.deepcopy, copy.copy,
    lambda optimizer: torch.save(optimizer, "/dev/null"),
    lambda optimizer: pickle.dumps(torch.optim.lr_scheduler.ConstantLR(optimizer))])
def test_copies_of_an_optimizer_are_refused(copies):
    with pytest.raises(spillway.NotSupportedError, match="cannot be pickled or copied"):
        copies(OffloadedAdamW(parameters()))


@pytest.mark.parametrize("copies", [copy.deepcopy, lambda model: torch.save(model, "/dev/null")])
def test_copies_of_an_offloaded_model_are_refused(copies):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    offload_model(model, "200KB")
    optimizer = OffloadedAdamW(model.parameters())
    with pytest.raises(spillway.NotSupportedError, match="an offloaded model cannot be"):
        copies(model)
    del optimizer


def test_a_folder_of_an_offloaded_model_needs_the_same_blocks(tmp_path):
    def make(blocks):
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
        model = torch.nn.Sequential(*layers)
        if blocks:
            offload_model(model, "1MiB", blocks=[layers[number] for number in blocks])
        return model, OffloadedAdamW(model.parameters())

    model, optimizer = make(range(4))
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.save(tmp_path / "saved")
    for blocks in ((), range(3)):
        other = make(blocks)[1]
        with pytest.raises(spillway.InvalidArgumentError, match="in the same groups and units"):
            other.load(tmp_path / "saved")
        assert not other.has_state()
    resumed, again = make(range(4))
    again.load(tmp_path / "saved")
    assert equal(resumed.parameters(), model.parameters())


def test_client_state_of_the_engine_may_be_any_object(tmp_path):
    config = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}

    def engine():
        return spillway.torch.initialize(model=torch.nn.Linear(4, 4), config=config)[0]

    first = engine()
    first.backward(first(torch.ones(2, 4)).sum())
    first.step()
    given = {"args": argparse.Namespace(epochs=3), "numpy": numpy.random.RandomState(5).get_state(),
             "python": random.Random(6).getstate()}
    first.save_checkpoint(tmp_path, client_state=given)
    second = engine()
    _, found = second.load_checkpoint(tmp_path)
    assert found["args"] == given["args"] and found["python"] == given["python"]
    assert numpy.array_equal(found["numpy"][1], given["numpy"][1])
    assert equal(second.module.parameters(), first.module.parameters())


def test_a_checkpoint_of_a_gpu_loads_where_there_is_none(tmp_path, monkeypatch):
    config = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}

    def engine():
        return spillway.torch.initialize(model=torch.nn.Linear(4, 4), config=config)[0]

    first = engine()
    given = {"queue": torch.arange(6.0), "nested": [torch.ones(2, dtype=torch.bfloat16)]}
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:3")
        first.save_checkpoint(tmp_path, client_state=given)
        torch.save(given, tmp_path / "reference")
    if torch.cuda.device_count() < 4:
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(tmp_path / "reference")
    second = engine()
    _, found = second.load_checkpoint(tmp_path)
    assert torch.equal(found["queue"], given["queue"]) and found["queue"].device.type == "cpu"
    assert torch.equal(found["nested"][0], given["nested"][0])
    assert equal(second.module.parameters(), first.module.parameters())
