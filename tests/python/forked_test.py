"""Forked children of a process that trains: they read parameters, and have nothing else of it."""
import os
import subprocess
import sys
import textwrap

import torch
from torch.utils.data import DataLoader, Dataset

import spillway
from spillway.torch import OffloadedAdamW

WIDTH = 1024


def trained():
    """Returns a layer that has made a step, and its optimizer."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = OffloadedAdamW(layer.parameters(), lr=1e-2)
    step(layer, optimizer)
    return layer, optimizer


def step(layer, optimizer):
    layer(torch.ones(1, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def address_space():
    """Returns the bytes of it that the kernel has given this process."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmSize"))


def outcome_in_child(call):
    """Returns what `call`, a number, is in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(call())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_has_no_parameter_whose_update_may_run():
    layer = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = OffloadedAdamW(layer.parameters(), deferred=layer)
    step(layer, optimizer)

    def is_refused():
        try:
            layer.weight.data_ptr()
        except spillway.NotSupportedError:
            return 1
        return 0

    assert outcome_in_child(is_refused) == 1
    optimizer.synchronize()
    assert outcome_in_child(is_refused) == 0


def test_a_child_has_the_parameters_and_no_state():
    layer, optimizer = trained()
    weight = layer.weight.detach().numpy()
    expected = weight.copy()
    # Master, momentum, variance and gradient: 4 bytes each.
    hidden = 4 * 4 * WIDTH * WIDTH
    most = address_space() - hidden
    # By numpy: torch's own threads do not survive a fork.
    assert outcome_in_child(lambda: int((weight == expected).all())) == 1
    assert outcome_in_child(lambda: int(address_space() <= most)) == 1
    step(layer, optimizer)
    assert not (weight == expected).all()


class Rows(Dataset):
    """Rows of a parameter, read where the optimizer keeps them."""

    def __init__(self, parameter):
        self._parameter = parameter

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self._parameter.detach()[index].clone()


def test_workers_of_a_data_loader_read_parameters():
    layer, optimizer = trained()
    loader = DataLoader(Rows(layer.weight), batch_size=16, num_workers=2,
                        multiprocessing_context="fork")
    rows = torch.cat(list(loader))
    assert torch.equal(rows, layer.weight.detach()[:64])
    step(layer, optimizer)


def test_an_optimizer_may_end_in_a_child_and_the_child_in_order(tmp_path):
    # With and without arrays that outlive it; then the interpreter of the child ends as usual.
    script = textwrap.dedent(f"""
        import gc, os, sys, torch
        from spillway.torch import OffloadedAdamW
        layers = [torch.nn.Linear(64, 64) for _ in range(3)]
        optimizers = [OffloadedAdamW(layer.parameters()) for layer in layers[:2]]
        optimizers.append(OffloadedAdamW(layers[2].parameters(), nvme=[{str(tmp_path)!r}]))
        for layer, optimizer in zip(layers, optimizers):
            layer(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        kept = layers[0].weight
        child = os.fork()
        if child == 0:
            optimizers[0].close()
            layers.clear()
            optimizers.clear()
            gc.collect()
            kept.detach().mul_(2)
            sys.exit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        layers[2](torch.ones(1, 64)).sum().backward()
        optimizers[2].step()
        sys.exit(code)
    """)
    # Newer Pythons warn of any fork in a process with threads.
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
                          check=False, timeout=60, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (7, "")
