"""State of the optimizers of spillway.torch: torch's layout both ways, checkpoints, and what misuse
is told."""
import errno
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdagrad, OffloadedAdam, OffloadedAdamW, OffloadedSGD

KINDS = [(OffloadedAdamW, torch.optim.AdamW), (OffloadedAdam, torch.optim.Adam),
         (OffloadedAdagrad, torch.optim.Adagrad), (OffloadedSGD, torch.optim.SGD)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
            for shape in ((30, 20), (11,))]


def run(tensors, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for tensor in tensors:
            tensor.grad = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        optimizer.step()
    return [tensor.detach().clone() for tensor in tensors]


def near(some, others, bound=1e-6):
    return all(float((a.detach() - b.detach()).abs().max()) < bound
               for a, b in zip(some, others, strict=True))


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def arguments(kind):
    return {"momentum": 0.9} if "SGD" in kind.__name__ else {}


@pytest.mark.parametrize("ours, theirs", KINDS)
def test_torch_goes_on_from_our_state_and_we_from_torchs(ours, theirs):
    whole = parameters()
    expected = run(whole, theirs(whole, **arguments(theirs)), range(20))
    for first, second in ((ours, theirs), (theirs, ours)):
        tensors = parameters()
        optimizer = first(tensors, **arguments(first))
        middle = run(tensors, optimizer, range(10))
        state = optimizer.state_dict()
        going_on = [torch.nn.Parameter(tensor.clone()) for tensor in middle]
        other = second(going_on, lr=123.0, **arguments(second))
        other.load_state_dict(state)
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert near(run(going_on, other, range(10, 20)), expected)


@pytest.mark.parametrize("dtype, state_format", [
    (torch.float32, "fp32"), (torch.bfloat16, "fp32"), (torch.bfloat16, "split"),
    (torch.float16, "fp32")])
def test_a_state_dict_resumes_with_the_same_bits(dtype, state_format):
    whole = parameters(dtype)
    expected = run(whole, OffloadedAdamW(whole, state_format=state_format), range(8))
    tensors = parameters(dtype)
    optimizer = OffloadedAdamW(tensors, state_format=state_format)
    run(tensors, optimizer, range(4))
    state = optimizer.state_dict()
    assert state["state"][0]["exp_avg"].dtype == torch.float32
    again = [torch.nn.Parameter(tensor.detach().clone()) for tensor in tensors]
    resumed = OffloadedAdamW(again, state_format=state_format)
    resumed.load_state_dict(state)
    assert equal(run(again, resumed, range(4, 8)), expected)


def anonymous_bytes():
    """The memory of this process that is no file's."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


def test_a_state_dict_of_state_on_disk_takes_no_memory(tmp_path):
    def make(folder):
        (tmp_path / folder).mkdir()
        tensors = [torch.nn.Parameter(torch.full((1 << 20,), float(i), dtype=torch.bfloat16))
                   for i in range(4)]
        return tensors, OffloadedAdamW(tensors, nvme=[tmp_path / folder], threads=1)

    tensors, optimizer = make("a")
    run(tensors, optimizer, range(1))
    again, resumed = make("b")
    one = tensors[0].numel() * 4 * 3  # state of one parameter; there are four
    before = anonymous_bytes()
    state = optimizer.state_dict()
    torch.save(state, tmp_path / "state.pt")
    assert anonymous_bytes() - before < one
    assert not list((tmp_path / "a").glob("state-dict-*"))
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", mmap=True))
    assert anonymous_bytes() - before < 2 * one
    for name, value in state["state"][3].items():
        assert torch.equal(resumed.state_dict()["state"][3][name], value)
    optimizer.load_state_dict(state)  # it is not of the memory that it is read into
    assert equal(run(again, resumed, range(1, 3)), run(tensors, optimizer, range(1, 3)))


def test_a_state_dict_that_the_disk_cannot_hold_is_refused(tmp_path, monkeypatch):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, nvme=[tmp_path])
    run(tensors, optimizer, range(1))
    before = set(tmp_path.iterdir())

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(spillway.IoError, match=r"no room for 2400 bytes .* use save"):
        optimizer.state_dict()
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_a_model_that_is_loaded_before_the_state_keeps_its_masters(tmp_path, saved, assigned):
    whole = parameters(torch.bfloat16)
    expected = run(whole, OffloadedAdamW(whole), range(8))
    tensors = parameters(torch.bfloat16)
    optimizer = OffloadedAdamW(tensors)
    assert optimizer.state_dict()["state"] == {}
    run(tensors, optimizer, range(4))
    again = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors]
    resumed = OffloadedAdamW(again)
    for tensor, value in zip(again, tensors, strict=True):
        if assigned:
            tensor.data = torch.ones_like(value)  # which the state replaces
            continue
        with torch.no_grad():
            tensor.copy_(value)
    if saved:
        optimizer.save(tmp_path / "saved")
        resumed.load(tmp_path / "saved")
    else:
        resumed.load_state_dict(optimizer.state_dict())
    assert equal(run(again, resumed, range(4, 8)), expected)


@pytest.mark.parametrize("state_format", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_save_and_load_resume_with_the_same_bits(tmp_path, state_format, on_disk):
    options = {"state_format": state_format}
    whole = parameters(torch.bfloat16)
    expected = run(whole, OffloadedAdamW(whole, **options), range(8))
    tensors = parameters(torch.bfloat16)
    optimizer = OffloadedAdamW(tensors, **options,
                               nvme=[tmp_path] if on_disk else ())
    run(tensors, optimizer, range(4))
    optimizer.save(tmp_path / "saved")
    again = parameters(torch.bfloat16)
    resumed = OffloadedAdamW(again, **options)
    resumed.load(tmp_path / "saved")
    assert equal(again, tensors)
    assert equal(run(again, resumed, range(4, 8)), expected)
    run(tensors, optimizer, range(4, 6))
    optimizer.save(tmp_path / "saved")  # again, over the first one
    later = parameters(torch.bfloat16)
    OffloadedAdamW(later, **options).load(tmp_path / "saved")
    assert equal(later, tensors) and [path.name for path in tmp_path.iterdir()
                                      if "partial" in path.name] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("")
    with pytest.raises(spillway.InvalidArgumentError, match="is no checkpoint"):
        optimizer.save(tmp_path / "other")


def test_damaged_checkpoints_and_those_of_others_are_refused(tmp_path):
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors)
    run(tensors, optimizer, range(2))
    optimizer.save(tmp_path / "saved")
    other = OffloadedAdamW([torch.nn.Parameter(torch.zeros(5))])
    with pytest.raises(spillway.Error):
        other.load(tmp_path / "saved")
    largest = max((path for path in (tmp_path / "saved").rglob("*") if path.is_file()),
                  key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(spillway.Error):
        OffloadedAdamW(parameters()).load(tmp_path / "saved")


@pytest.mark.parametrize("saves, loads", [("Adam", "AdamW"), ("AdamW", "Adam"), ("Adam", "group"),
                                          ("AdamW", "group")])
def test_weight_decay_of_a_group_is_decoupled_as_torchs(saves, loads):
    results = []
    kinds = ({"Adam": OffloadedAdam, "AdamW": OffloadedAdamW},
             {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW})
    for mine in kinds:
        tensors = parameters()
        optimizer = mine[saves](tensors, lr=0.01, weight_decay=0.5)
        if loads == "group":
            run(tensors, optimizer, range(3))
            optimizer.param_groups[0]["decoupled_weight_decay"] = saves == "Adam"
        else:
            reference = kinds[1][saves](tensors, lr=0.01, weight_decay=0.5)
            run(tensors, reference, range(3))
            state = reference.state_dict()
            tensors = [torch.nn.Parameter(tensor.detach().clone()) for tensor in tensors]
            optimizer = mine[loads](tensors)
            optimizer.load_state_dict(state)
        results.append(run(tensors, optimizer, range(3, 9)))
    assert near(*results)


def test_states_that_do_not_fit_are_refused():
    optimizer = OffloadedAdamW(parameters())
    tensors = parameters()
    torchs = torch.optim.AdamW(tensors, amsgrad=True)
    run(tensors, torchs, range(1))
    with pytest.raises(spillway.NotSupportedError, match="amsgrad"):
        optimizer.load_state_dict(torchs.state_dict())
    run(tensors, ours := OffloadedAdamW(tensors), range(1))
    state = ours.state_dict()
    state["state"][0]["exp_avg"] = torch.zeros(3)
    with pytest.raises(spillway.InvalidArgumentError, match="has the shape"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("make, kind, words", [
    (lambda: [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))],
     spillway.NotSupportedError, "float64"),
    (lambda: [torch.nn.Parameter(torch.zeros(3, device="meta"))],
     spillway.NotSupportedError, "is on meta"),
])
def test_parameters_that_cannot_be_offloaded_are_named(make, kind, words):
    with pytest.raises(kind, match=words):
        OffloadedAdamW(make())


def test_two_parameters_in_the_same_memory_are_refused():
    first = torch.nn.Parameter(torch.zeros(8))
    second = torch.nn.Parameter(first.data)
    with pytest.raises(spillway.InvalidArgumentError, match="the same memory"):
        OffloadedAdamW([first, second])


@pytest.mark.parametrize("options, words", [
    ({"lr": -1.0}, "lr"), ({"missing": "drop"}, "missing"),
    ({"accumulation_steps": 0}, "accumulation_steps is 0; it is a whole number from 1"),
    ({"state_format": "int4"}, "int4"), ({"state_format": "int8"}, "bf16"),
    ({"host_memory": "1KiB"}, "host")])
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(spillway.Error, match=words):
        OffloadedAdamW(parameters(), **options)


def test_steps_out_of_order_are_refused_and_change_nothing():
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, missing="refuse")
    before = run(tensors, optimizer, range(3))
    state = optimizer.state_dict()
    optimizer.zero_grad()
    with pytest.raises(spillway.InvalidArgumentError, match="parameter 0 of group 0"):
        optimizer.step()  # without gradients
    tensors[0].grad = torch.ones_like(tensors[0])
    with pytest.raises(spillway.InvalidArgumentError,
                       match='parameter 1 of group 0.*ask for zeros .missing="zero".'):
        optimizer.step()  # a gradient is missing
    with pytest.raises(spillway.InvalidArgumentError, match=r"call step\(\) or zero_grad\(\)"):
        optimizer.load_state_dict(state)
    (tensors[1] * 2).sum().backward()
    optimizer.zero_grad()
    assert near(tensors, before)
    expected = parameters()
    assert near(run(tensors, optimizer, range(3, 5)),
                run(expected, torch.optim.AdamW(expected), range(5)), 1e-5)


def test_a_model_that_is_converted_later_is_refused():
    net = torch.nn.Linear(3, 2)
    optimizer = OffloadedAdamW(net.parameters())
    net.to(torch.bfloat16)
    with pytest.raises(spillway.InvalidArgumentError, match="convert the model before"):
        net(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert optimizer.skipped_steps == 0


def test_missing_gradients_may_count_as_zero():
    ours, theirs = parameters(), parameters()
    mine, reference = OffloadedAdamW(ours, missing="zero"), torch.optim.AdamW(theirs)
    for step in range(4):
        for tensors in (ours, theirs):
            tensors[0].grad = torch.ones_like(tensors[0])
        theirs[1].grad = torch.zeros_like(theirs[1])
        mine.step()
        reference.step()
    assert near([t.detach() for t in ours], [t.detach() for t in theirs])


def test_two_optimizers_have_folders_of_their_own_in_one(tmp_path):
    pairs = [(tensors, OffloadedAdamW(tensors, nvme=[tmp_path]))
             for tensors in (parameters(), parameters())]
    expected = parameters()
    run(expected, OffloadedAdamW(expected), range(3))
    for step in range(3):
        for tensors, optimizer in pairs:
            run(tensors, optimizer, [step])
    assert all(equal(tensors, expected) for tensors, _ in pairs)


def test_a_fork_is_told_and_the_parent_goes_on():
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors)
    run(tensors, optimizer, range(1))
    child = os.fork()
    if child == 0:
        try:
            run(tensors, optimizer, range(1, 2))
        except spillway.Error as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(tensors, optimizer, range(1, 2))


def test_the_interpreter_may_end_in_the_middle_of_steps(tmp_path):
    # One update is decided and runs; another trainer is stepped by a thread that nobody joins.
    script = textwrap.dedent(f"""
        import threading, time
        import numpy, torch
        from spillway import _native
        from spillway.torch import OffloadedAdamW
        net = torch.nn.Linear(400, 400)
        optimizer = OffloadedAdamW(net.parameters(), deferred=net, nvme=[{str(tmp_path)!r}])
        net(torch.ones(1, 400)).sum().backward()
        optimizer.step()
        options = _native.TrainerOptions()
        options.groups = [_native.Group()]
        values = numpy.ones(1 << 20, dtype=numpy.float32)
        trainer = _native.Trainer(options, [("values", 0, values, None)])
        def step():
            while True:
                trainer.add_gradient(0, values)
                trainer.step(1.0, 0.0)
        threading.Thread(target=step, daemon=True).start()
        while trainer.steps < 2:
            time.sleep(0.001)
    """)
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr.replace("NotSupportedError: the interpreter is ending", "")


def test_memory_of_a_parameter_outlives_the_optimizer():
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors)
    after = run(tensors, optimizer, range(1))
    optimizer = None
    assert equal([tensor.detach() for tensor in tensors], after)
    tensors[0].sum().backward()  # no hook hands the gradient over
    assert tensors[0].grad is not None
