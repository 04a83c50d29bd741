"""Several processes whose ranks would train apart are refused; torchrun starts them."""
import os
import subprocess
import sys

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, initialize

CONFIG = {"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def trains_apart(name):
    """Does what a script of that name does, in a process of torchrun."""
    model = torch.nn.Linear(8, 1)
    if name == "wrapper":
        torch.distributed.init_process_group("gloo")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        OffloadedAdamW(wrapped.parameters(), accumulation_steps=None)
    else:
        OffloadedAdamW(model.parameters(),
                       process_group=torch.distributed.new_subgroups(1)[0])


def test_scripts_of_torchrun_are_refused_by_name():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         __file__], check=False, capture_output=True, encoding="utf-8",
        env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("wrapper")]
    assert len(said) == 2, done.stdout
    for line in said:
        assert "an optimizer without process_group with 2 processes" in line
        assert "process_group=torch.distributed.group.WORLD" in line
    assert done.stdout.count("apart on purpose: none") == 2


def test_a_launcher_is_noticed_without_a_group(monkeypatch):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = OffloadedAdamW([parameter])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(spillway.NotSupportedError, match="2 processes"):
        OffloadedAdamW([torch.nn.Parameter(torch.zeros(3))])
    parameter.grad = torch.ones(3)
    with pytest.raises(spillway.NotSupportedError, match="2 processes"):
        optimizer.step()


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}",
                                         rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_the_mean_that_a_wrapper_writes_is_what_updates(group_of_one):
    models = [torch.nn.Linear(8, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, kind in zip(models, (OffloadedSGD, torch.optim.SGD), strict=True):
        optimizer = kind(model.parameters(), lr=0.1)  # which a factor shows in, unlike Adam
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(None, half_of_bucket)
        for _ in range(2):
            wrapped(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(models[0].weight, models[1].weight)


def half_of_bucket(_, bucket):
    """Stands for the mean over two ranks."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer() * 0.5)
    return done


def test_a_wrapper_that_writes_gradients_of_ranks_again_is_refused(group_of_one):
    model = torch.nn.Linear(8, 1)
    optimizer = OffloadedAdamW(model.parameters(), accumulation_steps=None, stage=2,
                               process_group=torch.distributed.group.WORLD)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with pytest.raises(spillway.NotSupportedError, match="DistributedDataParallel"):
        wrapped(torch.ones(2, 8)).sum().backward()
    del optimizer


def test_a_wrapped_model_is_refused_where_the_engine_or_deferred_updates_need_it(group_of_one):
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    with pytest.raises(spillway.NotSupportedError, match="DistributedDataParallel"):
        initialize(model=wrapped, config=CONFIG)
    with pytest.raises(spillway.NotSupportedError, match="DistributedDataParallel"):
        OffloadedAdamW(torch.nn.Linear(8, 1).parameters(), deferred=wrapped)


def test_shards_of_fsdp_are_refused(group_of_one):
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(8, 1)
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    with pytest.raises(spillway.NotSupportedError, match="FSDP"):
        OffloadedAdamW(model.parameters())
    with pytest.raises(spillway.NotSupportedError, match="FSDPModule"):
        initialize(model=model, config=CONFIG)


if __name__ == "__main__":
    for script in ("wrapper", "apart on purpose"):
        said = "none"
        try:
            trains_apart(script)
        except spillway.NotSupportedError as error:
            said = str(error)
        os.write(1, f"{script}: {said}\n".encode())  # at once: the other process prints too
    torch.distributed.destroy_process_group()
