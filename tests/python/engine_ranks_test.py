"""The engine of spillway.torch.initialize on ranks: it has the bits of one process that is given
their batches, and is compared with DeepSpeed's on as many ranks."""
import json
import math
import os
import subprocess
import socket
import sys

import pytest
import torch
import torch.distributed as dist
from rank_processes import ranks_at

import spillway
from spillway.torch import OffloadedAdamW, comm, init_distributed, initialize, zero

RANKS = 2
CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "gradient_clipping": 0.05,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
          "zero_optimization": {"stage": 2}}
# Large enough that fp16 rounds no gradient as a subnormal.
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 2,
                 "hysteresis": 1}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store", RANKS) as on_ranks:
        yield lambda function, *arguments: on_ranks(RANKS, function, *arguments)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def make(model=None, **more):
    model = model or network()
    return initialize(model=model, model_parameters=model.parameters(),
                      config={**CONFIG, **more})[0]


def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def train(engine, numbers, spoilt=None):
    """Losses, norms and rates of micro-batches of these numbers."""
    said = []
    for number in numbers:
        x = batch(number).to(next(engine.module.parameters()).dtype)
        loss = engine(x).float().pow(2).mean()
        engine.backward(loss * math.inf if number == spoilt else loss)
        engine.step()
        said.append((loss.item(), float(engine.get_global_grad_norm()), engine.get_lr()[0]))
    return said


def weights(engine):
    return [parameter.detach().clone() for parameter in engine.module.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def counts(engine):
    return engine.loss_scale(), engine.global_steps, engine.skipped_steps, engine.get_lr()


def on_a_rank(_, rank, numbers, spoilt, more):
    engine = make(network(seed=rank), **more)  # parameters begin as those of the first rank
    said = train(engine, numbers[rank::RANKS], spoilt)
    assert (engine.world_size, engine.global_rank, engine.train_batch_size()) == (RANKS, rank, 16)
    return weights(engine), counts(engine), said


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}}, FP16,
                                  {"bf16": {"enabled": True},
                                   "spillway": {"state_format": "split"}}])
def test_ranks_have_the_bits_of_one_process(run, more):
    spoilt = 9 if more is FP16 else None  # a micro-batch of the second rank alone
    whole = make(**{**CONFIG, **more, "gradient_accumulation_steps": 2 * RANKS})
    expected = train(whole, range(24), spoilt)
    for rank, (values, counted, said) in enumerate(run(on_a_rank, range(24), spoilt, more)):
        assert same(values, weights(whole))
        assert counted == counts(whole)
        for (_, norm, _), (_, of_one, _) in zip(said[1::2], expected[3::4], strict=True):
            assert norm == of_one or spoilt is not None and math.isnan(norm + of_one)
        assert [loss for loss, *_ in said] == [loss for loss, *_ in expected][rank::RANKS]
    assert whole.skipped_steps == (spoilt is not None)


@pytest.mark.parametrize("stage", [0, 1])
def test_sums_of_gradients_are_exchanged_once_a_step(run, stage):
    whole = make(gradient_accumulation_steps=2 * RANKS)
    train(whole, range(24))
    for values, *_ in run(on_a_rank, range(24), None, {"zero_optimization": {"stage": stage}}):
        for mine, reference in zip(values, weights(whole), strict=True):
            # Sums of fp32 in another order, through 6 updates.
            torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)


def on_torchrun(name, folder):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(RANKS), __file__, name, str(folder)], check=False, capture_output=True,
        encoding="utf-8", env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{name}{rank}.json").read_text()) for rank in range(RANKS)]


def test_a_script_of_torchrun_trains_as_with_deepspeed(tmp_path):
    ours, theirs = (on_torchrun(name, tmp_path) for name in ("spillway", "deepspeed"))
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine["batch"] == reference["batch"] == 16
        for stage in ("1", "2"):
            assert len(mine[stage]) == 12
            for one, other in zip(mine[stage], reference[stage], strict=True):
                # Feedback carries roundings of fp32 through 6 updates.
                assert one == pytest.approx(other, rel=1e-4)
    assert ours[0]["2"] != ours[1]["2"], "each rank has batches of its own"


def show(name, folder):
    """Trains on a rank of torchrun, with DeepSpeed or with ours, and writes what comes of it."""
    if name == "deepspeed":
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed as module
    else:
        import spillway.torch as module
    module.init_distributed()
    rank, said = dist.get_rank(), {}
    for stage in (1, 2):
        model = network(seed=rank)
        config = {**CONFIG, "train_batch_size": 16, "zero_optimization": {"stage": stage}}
        config["optimizer"]["params"]["torch_adam"] = True
        engine, *_ = module.initialize(model=model, model_parameters=model.parameters(),
                                       config=config)
        said[stage] = []
        for number in range(rank, 24, RANKS):
            loss = engine(batch(number)).pow(2).mean()
            engine.backward(loss)
            engine.step()
            norm = float(engine.get_global_grad_norm() or 0) if number >= 3 else 0.0
            said[stage].append((loss.item(), norm, engine.get_lr()[0]))
        said["batch"] = engine.train_batch_size()
    with open(f"{folder}/{name}{rank}.json", "w", encoding="utf-8") as file:
        json.dump(said, file)
    if name == "deepspeed":
        dist.barrier()
        os._exit(0)  # it has aborted in its own end, and it is its figures that count
    dist.destroy_process_group()


def save_and_go_on(_, rank, folder, more):
    first = make(**more)
    train(first, range(rank, 12, RANKS))
    assert first.save_checkpoint(folder, client_state={"epoch": 3})
    first.save_checkpoint(folder, tag="again", save_latest=False)
    first.save_checkpoint(folder, tag="again", save_latest=False)
    train(first, range(12 + rank, 24, RANKS))
    second = make(network(seed=7), **more)
    train(second, range(rank, RANKS, RANKS))  # a step that the load cuts off
    path, client_state = second.load_checkpoint(folder)
    assert path == str(folder / "global_step3") and client_state == {"epoch": 3}
    train(second, range(12 + rank, 24, RANKS))
    assert same(weights(first), weights(second)) and counts(first) == counts(second)
    assert make().load_checkpoint(folder / "none") == (None, None)
    told = []
    for call in (lambda: second.load_checkpoint(folder, tag="other"),
                 lambda: second.save_checkpoint(folder, tag=f"of_{rank}")):
        with pytest.raises(spillway.Error) as error:
            call()
        told.append(str(error.value))
    return told


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}}])
def test_a_checkpoint_of_ranks_goes_on_with_the_same_bits(run, tmp_path, more):
    for told in run(save_and_go_on, tmp_path, more):
        assert "no checkpoint of tag other" in told[0]
        assert "all ranks run the same loop" in told[1]
    assert {path.name for path in tmp_path.iterdir()} == {"global_step3", "again", "latest"}
    assert {path.name for path in (tmp_path / "again/optimizer").iterdir()} == {"rank0", "rank1"}
    alone = make(network(seed=7), **more)
    with pytest.raises(spillway.InvalidArgumentError, match=r"state of 2 rank\(s\), and 1 load"):
        alone.load_checkpoint(tmp_path)
    alone.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert alone.global_steps == 3
    assert alone.optimizer.state_dict()["state"] == {}


def fail_to_save(_, rank, folder):
    engine = make()
    train(engine, range(rank, 4, RANKS))
    engine.save_checkpoint(folder, tag="best")
    before = weights(engine)
    train(engine, range(4 + rank, 8, RANKS))
    told = []
    for failing in range(RANKS):
        with pytest.MonkeyPatch.context() as patched:
            if rank == failing:
                patched.setattr(engine.optimizer, "save", no_space)
            with pytest.raises(spillway.Error) as error:
                engine.save_checkpoint(folder, tag="best")
        told.append(str(error.value))
    resumed = make()
    resumed.load_checkpoint(folder)
    assert same(weights(resumed), before)
    if rank == 1:
        (folder / "best/optimizer/rank1/state-0.swap").unlink()
    with pytest.raises(spillway.Error) as error:
        resumed.load_checkpoint(folder)
    return [*told, str(error.value)]


def no_space(*_):
    raise spillway.IoError("No space left on device", 28)


def test_a_rank_that_cannot_save_or_load_stops_all_of_them(run, tmp_path):
    for rank, told in enumerate(run(fail_to_save, tmp_path)):
        for failing in range(RANKS):
            assert ("No space left" if rank == failing else f"rank {failing} has raised an error "
                    "where it saves a checkpoint") in told[failing]
        assert rank == 1 or "rank 1 has raised an error where it calls load" in told[2]
    assert {path.name for path in tmp_path.iterdir()} == {"best", "latest"}


def take_sizes(_, rank):
    sizes = {"train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": None}
    engine = make(**{**sizes, "train_batch_size": 8})
    assert engine.train_micro_batch_size_per_gpu() == 4
    engine = make(**{**sizes, "train_batch_size": 24, "gradient_accumulation_steps": 3})
    assert engine.train_micro_batch_size_per_gpu() == 4
    assert make(gradient_accumulation_steps=None,
                train_batch_size=40).gradient_accumulation_steps() == 5
    assert make(gradient_accumulation_steps="auto",
                train_batch_size=40).gradient_accumulation_steps() == 5
    told = []
    for more in ({"train_batch_size": 8}, {"train_batch_size": 7, **sizes},
                 {"train_batch_size": 12, "gradient_accumulation_steps": None},
                 {"zero_optimization": {"stage": 3}}):
        with pytest.raises(spillway.Error) as error:
            make(**more)
        told.append(str(error.value))
    model, other = network(), network()
    without = {key: value for key, value in CONFIG.items() if key not in ("optimizer", "scheduler")}
    apart = dist.new_subgroups(1)[0]
    for options in ({"process_group": apart}, {"process_group": dist.group.WORLD, "stage": 1}):
        optimizer = OffloadedAdamW(model.parameters(), accumulation_steps=2, missing="zero",
                                   **options)
        with pytest.raises(spillway.Error) as error:
            initialize(model=model, optimizer=optimizer, config=without)
        told.append(str(error.value))
    with pytest.raises(spillway.NotSupportedError) as error:
        make(torch.nn.parallel.DistributedDataParallel(other))
    return [*told, str(error.value)]


def test_sizes_and_stages_that_ranks_cannot_have_are_refused(run):
    words = ["train_batch_size is 8, which is not 2 ranks x .*per_gpu 4 x .*steps 2: remove it",
             "train_batch_size is 7, which is no multiple of 2 ranks:",
             "train_batch_size is 12, which is no multiple of 2 ranks x .*per_gpu 4:",
             "zero_optimization.stage is 3.*set it to 2",
             r"optimizer= trains on 1 rank\(s\), and there are 2 processes",
             "zero_optimization.stage is 2, and stage of optimizer= 1", "DistributedDataParallel"]
    for told in run(take_sizes):
        for word, text in zip(words, told, strict=True):
            with pytest.raises(spillway.Error, match=word):
                raise spillway.Error(text)


def with_frozen_parts(_, rank):
    model = network(seed=rank)
    model[0].requires_grad_(False)
    data = torch.arange(12.0).repeat_interleave(8).view(12, 8)
    engine, optimizer, loader, _ = initialize(
        model=model, config={**CONFIG, "gradient_accumulation_steps": 1}, training_data=data)
    seen = []
    for x in loader:
        engine.backward(engine(x / 12).pow(2).mean())
        engine.step()
        seen += x[:, 0].tolist()
    assert optimizer.ranks.size == RANKS
    return weights(engine), seen


def test_frozen_parameters_are_those_of_the_first_rank_and_data_is_shared_out(run):
    (values, seen), (others, more_seen) = run(with_frozen_parts)
    assert same(values, others) and same(values[:2], list(network()[0].parameters()))
    assert sorted(seen + more_seen) == list(range(12)), "each rank has a half"


def write_on_one_rank(_, rank, folder):
    engine = make(network(seed=rank))
    parameters = list(engine.module.parameters())
    with zero.GatheredParameters(parameters, modifier_rank=1):
        if rank == 1:
            with torch.no_grad():
                parameters[0].fill_(0.25)
    engine.save_16bit_model(folder)
    with pytest.raises(spillway.NotSupportedError, match="no_sync with .*stage 2"), \
            engine.no_sync():
        pass
    train(engine, range(rank, 4, RANKS))
    summed = torch.tensor([float(rank + 1)])
    comm.all_reduce(summed)
    return weights(engine), comm.get_rank(), comm.get_world_size(), float(summed)


def test_what_one_rank_writes_in_a_context_of_zero_is_that_of_all(run, tmp_path):
    (values, *first), (others, *second) = run(write_on_one_rank, tmp_path)
    assert same(values, others)
    assert (first, second) == ([0, RANKS, 3.0], [1, RANKS, 3.0])
    saved = torch.load(tmp_path / "pytorch_model.bin")
    assert torch.all(saved["0.weight"] == 0.25)
    assert torch.equal(saved["2.weight"], network()[2].weight)


def test_processes_that_cannot_meet_are_told_how(monkeypatch):
    init_distributed("gloo")
    assert not dist.is_initialized()
    with pytest.raises(spillway.InvalidArgumentError, match="2 processes.*torchrun --nproc-per-"):
        init_distributed(world_size=2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for call in (init_distributed, make):
        with pytest.raises(spillway.InvalidArgumentError, match="4 processes.*RANK"):
            call()
    with pytest.warns(UserWarning, match="nccl, and the model stays on the CPU.*gloo"), (
            pytest.raises(spillway.InvalidArgumentError)):
        init_distributed("nccl")
    with pytest.raises(spillway.InvalidArgumentError, match="dist_init_required is False.*4 proc"):
        initialize(model=network(), config=CONFIG, dist_init_required=False)


def test_a_port_that_is_taken_is_named_with_the_remedy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(port)}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(spillway.IoError, match=rf"127.0.0.1:{port}.*MASTER_PORT to a free"):
            init_distributed()
    assert not dist.is_initialized()


if __name__ == "__main__":
    show(*sys.argv[1:])
