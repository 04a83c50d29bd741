"""What a machine has in memory whose ranks stream a model: one copy of it, whoever makes the
optimizer, and what ranks are told that cannot share it."""
import contextlib
import errno
import gc
import re

import pytest
import torch
import torch.distributed as dist
from rank_processes import ranks_at
from streamed_ranks_test import BUDGET, groups, machine, make, same, train, values
from streaming_test import batch, freeze, model_of_blocks

import spillway
from spillway._load import native
from spillway.torch import OffloadedSGD, _machine, initialize, offload_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


class Wide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def wide_model():
    return torch.nn.Sequential(*(Wide(1024) for _ in range(12)))  # 50 MB


def memory_of_process():
    """PSS, and of the memory that ranks share: PSS, RSS and what is this process's alone. Bytes."""
    with open("/proc/self/smaps_rollup") as file:
        whole = int(re.search(r"^Pss: *(\d+) kB", file.read(), re.M)[1])
    shared = {"Pss": 0, "Rss": 0, "Anonymous": 0}
    with open("/proc/self/smaps") as file:
        for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", file.read(), flags=re.M):
            if "memfd:spillway" in mapping:
                for name in shared:
                    shared[name] += int(re.search(rf"^{name}: *(\d+) kB", mapping, re.M)[1])
    return {"whole": whole << 10, **{name: each << 10 for name, each in shared.items()}}


def measures(group, rank):
    model, optimizer = make(group=group)
    train(model, optimizer, [0], rank, 2)  # what torch takes at first is taken
    optimizer.close()
    del model, optimizer
    gc.collect()
    native.release_freed_memory()
    before = memory_of_process()
    assert before["Pss"] == 0, "another test has left memory"
    torch.manual_seed(rank)
    model = wide_model()
    offload_model(model, "16MB", blocks=list(model))
    optimizer = OffloadedSGD(model.parameters(), lr=1e-3, momentum=0.9, process_group=group,
                             threads=1)
    for step in range(2):
        model(torch.full((2, 1024), 0.1 * step + rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    (shard,) = optimizer._shards
    items = [item for trainer in (shard.trainer, shard._viewer) for item in trainer.memory()]
    own = sum(size for tier, what, size in items
              if tier in ("host", "device") and what not in ("parameters", "frozen parameters"))
    native.release_freed_memory()
    dist.barrier(group)  # all measure at once
    after = memory_of_process()
    dist.barrier(group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    written = memory_of_process()["Anonymous"]
    model(torch.zeros(1, 1024))
    return after, after["whole"] - before["whole"], own, written, memory_of_process()["Anonymous"]


def test_a_machine_has_one_copy_of_the_parameters(run):
    size = sum(parameter.nbytes for parameter in wide_model().parameters())
    results = run(2, measures)
    # Parameters begin on leaves of 16 KiB, and the last bucket is cut in equal parts.
    pages = sum(after["Pss"] for after, *_ in results)
    assert size <= pages <= size + 13 * 2 * 16384 + 4096
    for after, *_ in results:
        assert after["Anonymous"] == 0  # nothing is a rank's alone
        # Views of two trainers, and of Python where the first rank has filled it.
        assert after["Rss"] <= 3 * pages
    # Of both ranks: the parameters once, what their trainers have, and buffers of gradients that
    # are exchanged. A second copy would be above the half of one that is left for the rest.
    grown = sum(each for _, each, *_ in results)
    owned = sum(own for _, _, own, *_ in results)
    assert pages < grown < pages + owned + size // 2
    for *_, written, dropped in results:
        assert written >= size and dropped == 0  # once all have noticed it


# Loops of DeepSpeed.

def trains_an_engine(group, rank, streamed):
    torch.manual_seed(1 + rank)
    model = freeze(model_of_blocks())
    if streamed:
        offload_model(model, BUDGET)
    engine = initialize(model=model, model_parameters=groups(model), config={
        "train_micro_batch_size_per_gpu": 5, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 2}})[0]
    for step in range(2):
        engine.backward(engine(batch(10 * step + rank)))
        engine.step()
    alone = memory_of_process()["Anonymous"]
    result = values(model)
    engine.destroy()
    return result, alone


def test_an_engine_streams_the_model_of_all_ranks(run):
    expected = run(3, trains_an_engine, False)[0][0]
    for after, alone in run(3, trains_an_engine, True):
        assert same(after, expected) and alone == 0


# Ranks that have no memory.

@contextlib.contextmanager
def without_rights():
    """Makes /proc refuse what other processes have open."""
    real = _machine.os.open

    def refuse(path, *arguments, **keywords):
        if "/fd/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *arguments, **keywords)

    _machine.os.open = refuse
    try:
        yield
    finally:
        _machine.os.open = real


def does_not_get_memory(group, rank):
    with without_rights(), pytest.raises(spillway.NotSupportedError) as error:
        make(group=group)
    with machine(str(rank)), without_rights():
        make(group=group)  # nobody opens what another one has
    # One rank alone has too little memory.
    with pytest.raises(spillway.Error) as short:
        make(group=group, host_memory="100KB" if rank else "1GB")
    return str(error.value), str(short.value)


def test_all_ranks_are_told_where_one_gets_no_memory(run):
    (first, other_failed), (second, too_little) = run(2, does_not_get_memory)
    assert first == second and "rank 1 may not open shared memory of rank 0" in first
    assert "rank 1 has raised an error where it registers" in other_failed
    assert "the budget" in too_little or "host memory" in too_little
