"""Checkpoints that DeepSpeed itself has written go on as there."""
import os
import pickle
import subprocess
import sys

import pytest
import torch

import spillway
import spillway.torch

CONFIG = {"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}}}
#: Ranks of DeepSpeed, its stage, and the precision.
WRITERS = {"alone": (1, 1, {}), "ranks": (2, 2, {"bf16": {"enabled": True}})}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def train(engine, numbers):
    losses = []
    for number in numbers:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        loss = engine(x.to(next(engine.module.parameters()).dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def write(name, folder):
    """Trains with DeepSpeed on ranks of torchrun: four steps, a checkpoint, and four steps."""
    import deepspeed

    ranks, stage, precision = WRITERS[name]
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    model = network()
    config = {**CONFIG, **precision, "zero_optimization": {"stage": stage}}
    config["optimizer"]["params"]["torch_adam"] = True
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config)
    train(engine, range(rank, 4 * ranks, ranks))
    engine.save_checkpoint(folder, client_state={"epoch": 3})
    losses = train(engine, range(4 * ranks + rank, 8 * ranks, ranks))
    torch.save((losses, [each.detach().clone() for each in model.parameters()], engine.get_lr()),
               f"{folder}/after{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", params=WRITERS)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(WRITERS[request.param][0]), __file__, request.param, str(folder)], check=False,
        capture_output=True, encoding="utf-8",
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    return request.param, folder


def make(name):
    model = network()
    return spillway.torch.initialize(model=model, config={
        **CONFIG, **WRITERS[name][2], "gradient_accumulation_steps": WRITERS[name][0]})[0]


def test_a_checkpoint_of_deepspeed_goes_on_as_there(written):
    name, folder = written
    ranks = WRITERS[name][0]
    engine = make(name)
    path, client_state = engine.load_checkpoint(folder)
    assert path == f"{folder}/global_step4" and client_state == {"epoch": 3}
    assert (engine.global_steps, engine.global_samples) == (4, 16 * ranks)
    losses = train(engine, range(4 * ranks, 8 * ranks))
    expected, weights, rates = torch.load(f"{folder}/after0.pt")
    # The gradients of bf16 are rounded in other places; state that began again is off by 1e-2.
    bound = 2e-3 if "bf16" in WRITERS[name][2] else 1e-5
    assert losses[::ranks] == pytest.approx(expected, rel=10 * bound)
    for mine, reference in zip(engine.module.parameters(), weights, strict=True):
        torch.testing.assert_close(mine, reference, rtol=8 * bound, atol=bound)
    assert engine.get_lr() == pytest.approx(rates, rel=1e-12)
    step = engine.optimizer.state_dict()["state"][0]["step"]
    assert int(step) == 8


def test_only_the_model_of_a_checkpoint_of_deepspeed_may_be_loaded(written):
    name, folder = written
    engine = make(name)
    engine.load_checkpoint(folder, load_module_only=True)
    assert engine.global_steps == 0 and engine.optimizer.state_dict()["state"] == {}
    saved = torch.load(folder / "global_step4/mp_rank_00_model_states.pt", weights_only=True)
    for key, value in engine.module.state_dict().items():
        assert torch.equal(value, saved["module"][key])


def test_masters_and_moments_are_those_of_the_files(written):
    """The files are read by DeepSpeed's own classes here."""
    name, folder = written
    engine = make(name)
    engine.load_checkpoint(folder)
    flat = {"exp_avg": [], "exp_avg_sq": [], "master": []}
    for path in sorted(folder.glob("global_step4/*optim_states.pt")):
        part = torch.load(path, weights_only=False)["optimizer_state_dict"]
        flat["master"] += part["single_partition_of_fp32_groups"]
        for key in ("exp_avg", "exp_avg_sq"):
            flat[key].append(part["base_optimizer_state"]["state"][0][key])
    states = engine.optimizer.state_dict()["state"]
    for key, values in flat.items():
        if key in states[0]:
            mine = torch.cat([states[number][key].flatten() for number in range(4)])
            assert torch.equal(mine, torch.cat(values)[:mine.numel()]), key
    assert ("master" in states[0]) == (name == "ranks")


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_a_file_that_would_run_code_or_is_absent_is_refused(written, monkeypatch):
    name, folder = written
    monkeypatch.chdir(folder)
    path = next(iter(sorted(folder.glob("global_step4/*optim_states.pt"))))
    whole = path.read_bytes()
    engine = make(name)
    try:
        torch.save({"optimizer_state_dict": Harmful()}, path, pickle_module=pickle)
        with pytest.raises(spillway.CorruptDataError, match="has more than tensors.*posix.mkdir"):
            engine.load_checkpoint(folder)
        assert not (folder / "harm").exists()
        path.unlink()
        with pytest.raises(spillway.InvalidArgumentError, match="has no zero_pp_rank_0"):
            engine.load_checkpoint(folder)
    finally:
        path.write_bytes(whole)
    assert engine.global_steps == 0


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
