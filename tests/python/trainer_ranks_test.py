"""Trainers that torchrun starts on two ranks: the bits of one process that is given the ranks'
batches in order, the losses and norms of a Trainer with DistributedDataParallel, and runs that are
killed and go on."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import pytest
import torch
import transformers
from tiny_trainers import examples, llama, make, same, seeded, train, weights

import spillway
from spillway import _trainer_ranks
from spillway.huggingface import Offloaded, SpillwayTrainer
from spillway.torch import OffloadedAdamW

RANKS = 2
STEPS = 6  # of 3 micro-batches, but the last of an epoch: 7 batches are dealt out to each rank


def adapted():
    import peft

    model = peft.get_peft_model(llama(), peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    model.register_buffer("noise", torch.randn(3, 2).t())
    model.register_buffer("mask", torch.randn(3) > 0)
    return model


#: Trainers, by name: model, options (None: transformers' Trainer), arguments.
CASES = {
    "whole": (llama, {}, {}),
    "brief": (lambda: llama().bfloat16(), {"state_format": "split"}, {"max_grad_norm": 0.0}),
    "sums": (llama, {"stage": 1}, {}),
    "adapters": (adapted, {}, {}),
    "means": (llama, {}, {"average_tokens_across_devices": False}),
    "best": (llama, {}, {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
                         "load_best_model_at_end": True, "greater_is_better": True}),
    "plain": (llama, None, {}), "plain_adapters": (adapted, None, {}),
    "plain_means": (llama, None, {"average_tokens_across_devices": False})}


class Noting:
    """Notes what each step of a Trainer is given."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.noted.append((inputs, num_items_in_batch, self.optimizer.param_groups[0]["lr"]))
        return super().training_step(model, inputs, num_items_in_batch)


class NotingTrainer(Noting, transformers.Trainer):
    pass


class NotingSpillway(Noting, Offloaded, transformers.Trainer):
    pass


def start(name, rank, folder, **more):
    make_model, options, arguments = CASES[name]
    torch.manual_seed(1 + rank)  # all begin as the first rank does
    more = more if options is None else {"spillway": options, **more}
    if "eval_steps" in arguments:
        more["eval_dataset"] = examples()[:8]
    trainer = make(NotingTrainer if options is None else NotingSpillway, make_model(),
                   folder / name, STEPS, arguments=arguments, **more)
    trainer.noted = []
    return trainer


def trains(folder, rank):
    for name in CASES:
        trainer = start(name, rank, folder)
        log = train(trainer)
        if (options := CASES[name][1]) is not None:
            assert trainer._offloaded()._ranks.stage == options.get("stage", 2)
        torch.save({"log": log, "best": trainer.state.best_model_checkpoint,
                    "weights": weights(trainer.model), "buffers": list(trainer.model.buffers()),
                    "noted": trainer.noted}, folder / f"{name}.{rank}")


def killed(folder, rank, model=llama, **streamed):
    """The second rank kills itself where it would save its part after step 8."""

    class Killed(SpillwayTrainer):
        def _save_optimizer_and_scheduler(self, output_dir):
            if self.state.global_step == 8 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            super()._save_optimizer_and_scheduler(output_dir)

    train(make(Killed, seeded(model), folder / "run", 8, spillway={"nvme": [folder], **streamed}))


def resumed(folder, rank):
    """Goes on after the kill, and says what is refused."""
    for path, begun in (("run", str(folder / "run/checkpoint-4")), ("uncut", None)):
        model = seeded(llama)
        options = {"nvme": [folder], "deferred": path == "run"}
        log = train(make(SpillwayTrainer, model, folder / path, 8, spillway=options),
                    resume_from_checkpoint=begun)
        torch.save((log, weights(model)), folder / f"{path}.{rank}")
    told = []
    for options, arguments in (({"stage": 3}, {}), ({}, {"auto_find_batch_size": True})):
        with pytest.raises(spillway.Error) as error:
            train(make(SpillwayTrainer, llama(), folder / "refused", 1, arguments=arguments,
                       spillway=options))
        told.append(str(error.value))
    model = llama()
    own = torch.distributed.new_subgroups(1)[0]
    alone = OffloadedAdamW(model.parameters(), process_group=own, accumulation_steps=None)
    with pytest.raises(spillway.Error) as error:
        make(SpillwayTrainer, model, folder, optimizers=(alone, None))
    told.append(str(error.value))
    with pytest.warns(UserWarning, match="BatchNorm, whose running statistics stay"):
        make(SpillwayTrainer, torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)),
             folder).create_optimizer()
    configured = deepspeed_section()
    trainer = make(SpillwayTrainer, llama(), folder / "configured", 1, spillway=configured)
    trainer.train()
    assert trainer._offloaded()._ranks.stage == 1
    configured["train_batch_size"] = 12
    with pytest.raises(spillway.Error) as error:
        make(SpillwayTrainer, llama(), folder, spillway=configured)
    told.append(str(error.value))
    (folder / f"told.{rank}").write_text(json.dumps(told))


def deepspeed_section():
    return {"train_batch_size": 4 * 3 * RANKS, "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 1}}


def torchrun(what, folder, succeeds=True, script=__file__):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(RANKS), script, what, str(folder)], check=False, capture_output=True,
        encoding="utf-8", env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=500)
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    torchrun("trains", folder)
    return {name: [torch.load(folder / f"{name}.{rank}", weights_only=False)
                   for rank in range(RANKS)] for name in CASES}


def of_one_process(name, results, cases=None):
    """Trains by a loop in this process, which is given the ranks' batches in order."""
    make_model, options, arguments = (cases or CASES)[name]
    torch.manual_seed(1)
    model = make_model()
    groups = [{"params": [parameter for key, parameter in model.named_parameters()
                          if ("norm" in key) != is_decayed], "weight_decay": 0.1 * is_decayed}
              for is_decayed in (True, False)]
    optimizer = OffloadedAdamW(groups, lr=0.0, accumulation_steps=None, threads=1,
                               max_norm=arguments.get("max_grad_norm", 0.5), **options)
    norms, sizes = [], [3, 3, 1, 3, 3, 1]
    noted = [list(each["noted"]) for each in results[name]]
    for size in sizes:
        for _ in range(size):
            for rank in range(RANKS):
                inputs, count, lr = noted[rank].pop(0)
                (model(**inputs, num_items_in_batch=count).loss * RANKS).backward()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step(divisor=RANKS)
        optimizer.zero_grad()
        norms.append(torch.tensor(optimizer.grad_norm).item())  # as a Trainer logs it
    assert not any(noted)
    return weights(model), norms


@pytest.mark.parametrize("name", ["whole", "brief"])
def test_ranks_have_the_bits_of_one_process(results, name):
    expected, norms = of_one_process(name, results)
    for each in results[name]:
        assert same(each["weights"], expected)
        assert [norm for _, norm in each["log"]] == norms


def test_batches_are_dealt_out_as_the_trainer_deals_them(results, tmp_path):
    torch.manual_seed(1)
    alone = make(SpillwayTrainer, llama(), tmp_path)
    batches = list(alone.get_train_dataloader())
    assert len(batches) == 13  # and a rank that has fewer gets one of the first again
    for number, batch in enumerate(batches[:12]):
        inputs, _, _ = results["whole"][number % RANKS]["noted"][number // RANKS]
        assert torch.equal(inputs["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("name, plain", [
    ("whole", "plain"), ("sums", "plain"), ("adapters", "plain_adapters"),
    ("means", "plain_means")])
def test_losses_and_norms_are_those_of_a_plain_trainer_on_ranks(results, name, plain):
    first, second = results[name]
    assert first["log"] == second["log"] and same(first["weights"], second["weights"])
    assert same(first["buffers"], second["buffers"])
    # Trainer logs rounded numbers; feedback through 6 steps carries roundings of fp32 on.
    for ours, reference in zip(first["log"], results[plain][0]["log"], strict=True):
        assert ours == pytest.approx(reference, rel=2e-3)
    assert first["log"][-1][0] < first["log"][0][0]


def test_the_best_model_is_loaded_on_all_ranks(results):
    first, second = results["best"]
    best = transformers.LlamaForCausalLM.from_pretrained(first["best"])
    assert first["best"].endswith("-2") and first["best"] == second["best"]
    assert same(first["weights"], weights(best)) and same(second["weights"], weights(best))


def test_processes_without_a_group_are_refused(tmp_path, monkeypatch):
    args = make(SpillwayTrainer, llama(), tmp_path).args
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(spillway.NotSupportedError, match="SpillwayTrainer with 2 processes"):
        SpillwayTrainer(model=llama(), args=args)


@pytest.mark.parametrize("arguments, state, words", [
    ({"fsdp": "full_shard"}, {}, "2 processes and FSDP"),
    ({}, {"distributed_type": types.SimpleNamespace(value="FSDP")}, "2 processes and FSDP"),
    ({}, {"parallelism_config": types.SimpleNamespace(tp_size=2, cp_size=1, sp_size=2)},
     "a parallelism_config of tp, sp is not supported"), ({}, {}, None)])
def test_other_ways_of_training_together_are_refused(monkeypatch, arguments, state, words):
    monkeypatch.setattr(_trainer_ranks, "processes", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    args = types.SimpleNamespace(**{"fsdp": [], "auto_find_batch_size": False, **arguments})
    accelerator = types.SimpleNamespace(**{
        "distributed_type": types.SimpleNamespace(value="MULTI_CPU"),
        "parallelism_config": None, **state})
    raises = contextlib.nullcontext() if words is None else pytest.raises(
        spillway.NotSupportedError, match=words)
    with raises:
        _trainer_ranks.check_ranks(args, accelerator, "SpillwayTrainer")


def test_killed_ranks_go_on_with_the_same_bits_and_refusals_are_named(tmp_path):
    torchrun("killed", tmp_path, succeeds=False)
    whole, cut = (tmp_path / f"run/checkpoint-{step}" for step in (4, 8))
    assert sorted(os.listdir(whole / "spillway")) == ["rank0", "rank1"]
    assert os.listdir(cut / "spillway") == ["rank0"]
    assert (whole / "trainer_state.json").exists() and not (cut / "trainer_state.json").exists()
    torchrun("resumed", tmp_path)
    for rank in range(RANKS):
        (log, values), (expected, whole) = (torch.load(tmp_path / f"{path}.{rank}")
                                            for path in ("run", "uncut"))
        assert log == expected and same(values, whole)
    words = ["stage of the Trainer is 3", "2 processes and auto_find_batch_size",
             r"trains with 1 rank\(s\), and the Trainer has 2", "train_batch_size is 12.* say 24"]
    told = [json.loads((tmp_path / f"told.{rank}").read_text()) for rank in range(RANKS)]
    assert told[0] == told[1]
    assert all(re.search(each, text) for each, text in zip(words, told[0], strict=True)), told
    with pytest.raises(spillway.InvalidArgumentError, match=r"that 2 process\(es\) have saved, and "
                       "1 are to load it: start as many"):
        train(make(SpillwayTrainer, llama(), tmp_path / "run", 9), resume_from_checkpoint=True)


if __name__ == "__main__":
    {"trains": trains, "killed": killed, "resumed": resumed}[sys.argv[1]](
        pathlib.Path(sys.argv[2]), int(os.environ["RANK"]))
