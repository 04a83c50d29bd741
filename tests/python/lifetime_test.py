"""What an optimizer holds goes with it, while the model lives; another one takes its place."""
import gc
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, offload_model

MIB = 1 << 20


def resident_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def network(width=16, layers=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def train(model, optimizer, steps=3):
    for step in range(steps):
        x = torch.randn(4, model[0].in_features, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(some, others):
    return all(torch.equal(a.detach(), b.detach()) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_of_state_goes_with_the_optimizer(tmp_path, on_disk):
    options = {"nvme": tmp_path} if on_disk else {}
    warm = network()
    optimizer = OffloadedAdamW(warm.parameters(), **options)
    train(warm, optimizer)
    del optimizer, warm
    gc.collect()
    before = resident_bytes()
    model = network(2048)  # 12 million parameters: 48 MiB
    size = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = OffloadedAdamW(model.parameters(), **options)
    values = train(model, optimizer, 1)
    view = model[0].weight.data  # a hold on the memory of the parameters keeps nothing else
    expected = [value.sum() for value in values]
    del values
    if not on_disk:
        assert resident_bytes() - before > 3 * size
    del optimizer
    gc.collect()
    assert resident_bytes() - before < 1.05 * size + 2 * MIB
    assert [parameter.sum() for parameter in model.parameters()] == expected
    assert torch.equal(view, model[0].weight)
    assert not list(tmp_path.rglob("*.tiles*")) and not any(
        path.stat().st_size > MIB for path in tmp_path.rglob("*") if path.is_file())


def in_another_process(folder):
    """Whether another process can keep state there."""
    script = f"""
        import torch
        from spillway.torch import OffloadedAdamW
        OffloadedAdamW([torch.nn.Parameter(torch.zeros(3))], nvme={str(folder)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0 or "BusyError" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_folder_is_locked_against_other_processes_until_the_optimizer_goes(tmp_path):
    model = network()
    optimizer = OffloadedAdamW(model.parameters(), nvme=tmp_path)
    assert not in_another_process(tmp_path)
    del optimizer
    assert in_another_process(tmp_path)
    with OffloadedAdamW(model.parameters(), nvme=tmp_path) as optimizer:
        train(model, optimizer)
    assert in_another_process(tmp_path)
    del model


@pytest.mark.parametrize("ended", ["deleted", "closed", "replaced"])
def test_a_second_optimizer_of_a_model_begins_anew(tmp_path, ended):
    ours, theirs = network(), network()
    optimizer = OffloadedAdamW(ours.parameters(), lr=0.1, nvme=tmp_path)
    train(ours, optimizer)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.1))
    if ended == "deleted":
        del optimizer
    elif ended == "closed":
        optimizer.close()
        optimizer.close()
    first = optimizer if ended != "deleted" else None
    second = OffloadedAdamW(ours.parameters(), lr=0.01, nvme=tmp_path)
    mine = train(ours, second)
    reference = train(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, reference, strict=True))
    if first is not None:
        words = "close\\(\\) was called" if ended == "closed" else "another optimizer was made"
        for call in (first.step, first.zero_grad, first.state_dict, first.synchronize,
                     lambda: first.save(tmp_path / "saved"),
                     lambda: first.clip_grad_norm_(1.0)):
            with pytest.raises(spillway.InvalidArgumentError, match=words):
                call()


def test_a_cell_that_runs_again_makes_model_and_optimizer_anew(tmp_path):
    values = []
    for _ in range(3):
        model = network()
        optimizer = OffloadedAdamW(model.parameters(), nvme=tmp_path)  # the old one is there still
        values.append(train(model, optimizer))
    assert same(values[1], values[0]) and same(values[2], values[0])
    assert {path.name for path in tmp_path.glob("optimizer*")} <= {"optimizer2"}


def test_what_a_killed_process_left_goes_with_the_next_start(tmp_path):
    """Two optimizers with two types of parameters have four folders, and the next one needs one."""
    script = f"""
        import os
        import signal
        import torch
        from spillway.torch import OffloadedAdamW
        optimizers = [OffloadedAdamW(
            [torch.nn.Parameter(torch.zeros(9, dtype=dtype))
             for dtype in (torch.float32, torch.bfloat16)], nvme={str(tmp_path)!r})
            for _ in range(2)]
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert len(list(tmp_path.rglob("tiles-0.swap"))) == 4
    with OffloadedAdamW(network().parameters(), nvme=tmp_path):
        assert list(tmp_path.rglob("*.swap")) == [tmp_path / "tiles-0.swap"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_in_use_or_somebody_elses_is_not_taken_for_left_over(tmp_path):
    own = tmp_path / "rank7/tiles-0.swap"
    own.parent.mkdir()
    own.write_bytes(b"my only copy")
    models = [network() for _ in range(3)]
    optimizers = [OffloadedAdamW(model.parameters(), nvme=tmp_path) for model in models]
    results = [train(*pair) for pair in zip(models, optimizers, strict=True)]
    assert same(results[0], results[1]) and same(results[0], results[2])
    assert own.read_bytes() == b"my only copy"


def test_an_optimizer_that_was_closed_frees_no_folder_of_others(tmp_path):
    first = OffloadedAdamW(network().parameters(), nvme=tmp_path)
    first.close()
    models = network(), network()
    second = OffloadedAdamW(models[0].parameters(), nvme=tmp_path)
    del first
    third = OffloadedAdamW(models[1].parameters(), nvme=tmp_path)
    assert same(train(models[0], second), train(models[1], third))


@pytest.mark.parametrize("options", [{}, {"deferred": True}])
def test_freeze_then_train(tmp_path, options):
    model = network()
    expected = network()
    for net, kind, folders in ((model, OffloadedAdamW, {"nvme": tmp_path}),
                               (expected, torch.optim.AdamW, {})):
        more = {"deferred": net} if options and kind is OffloadedAdamW else {}
        net[0].requires_grad_(False)
        train(net, kind([p for p in net.parameters() if p.requires_grad], lr=0.01, **folders,
                        **more))
        net[0].requires_grad_(True)
        optimizer = kind(net.parameters(), lr=0.01, **folders, **more)
        train(net, optimizer)
        if more:
            optimizer.synchronize()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in
               zip(model.parameters(), expected.parameters(), strict=True))


def test_a_deferred_update_is_applied_before_the_end():
    ours, theirs = network(), network()
    optimizer = OffloadedAdamW(ours.parameters(), deferred=ours)
    train(ours, optimizer)
    optimizer.close()
    train(theirs, OffloadedAdamW(theirs.parameters()))
    assert same(ours.parameters(), theirs.parameters())


def test_an_offloaded_model_takes_a_second_optimizer():
    ours, theirs = network(), network()
    offload_model(ours, "128KiB")
    for net in (ours, theirs):
        first = OffloadedAdamW(net.parameters())
        train(net, first)
        del first
        train(net, OffloadedAdamW(net.parameters()))
    assert same(ours.parameters(), theirs.parameters())


def test_a_model_without_its_optimizer_is_any_model():
    model = network()
    optimizer = OffloadedAdamW(model.parameters(), deferred=model)
    train(model, optimizer)
    del optimizer
    model.zero_grad()
    model(torch.ones(1, 16)).sum().backward()
    assert type(model[0].weight.grad) is torch.Tensor
    assert not model[0]._forward_pre_hooks
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def growth(offloaded):
    """Bytes by which 250 constructions grow this process."""
    model = network()
    if offloaded:
        offload_model(model, "128KiB")

    def construct(times):
        for _ in range(times):
            train(model, OffloadedAdamW(model.parameters(), threads=1), 1)
        gc.collect()

    construct(50)
    before = resident_bytes()
    construct(250)
    return resident_bytes() - before


@pytest.mark.parametrize("offloaded", ["", "offloaded"])
def test_constructions_leave_nothing(offloaded):
    # In a process of its own, whose memory nothing else has cut up.
    done = subprocess.run([sys.executable, __file__, offloaded], check=False, capture_output=True,
                          encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MIB


if __name__ == "__main__":
    print(growth(bool(sys.argv[1])))
