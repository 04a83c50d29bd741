"""Trainers of transformers and TRL with an offloaded optimizer: the losses of torch's, the same
bits from every tier, and runs that are killed and go on."""
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import transformers
from tiny_trainers import TEXT, gpt2, llama, make, same, seeded, tokenizer, train, weights

import spillway
from spillway.huggingface import Offloaded, SpillwayTrainer
from spillway.torch import OffloadedAdamW


@pytest.mark.parametrize("make_model", [llama, gpt2])
def test_losses_and_norms_are_those_of_torch_and_no_tier_changes_a_bit(tmp_path, make_model):
    models = [seeded(make_model) for _ in range(3)]
    # Trainer logs rounded numbers; feedback through 10 steps carries roundings of fp32 on.
    theirs = train(make(transformers.Trainer, models[0], tmp_path / "0", 10))
    memory = train(make(SpillwayTrainer, models[1], tmp_path / "1", 10))
    disk = train(make(SpillwayTrainer, models[2], tmp_path / "2", 10,
                      spillway={"nvme": [tmp_path], "deferred": True}))
    for ours, reference in zip(memory, theirs, strict=True):
        assert ours == pytest.approx(reference, rel=2e-3)
    assert disk == memory
    assert same(weights(models[2]), weights(models[1]))


def test_a_trainer_that_is_given_the_optimizer(tmp_path):
    ours, theirs = seeded(gpt2), seeded(gpt2)
    optimizer = OffloadedAdamW(ours.parameters(), lr=1e-2, accumulation_steps=None)
    mine = train(make(transformers.Trainer, ours, tmp_path / "0", optimizers=(optimizer, None)))
    reference = train(make(transformers.Trainer, theirs, tmp_path / "1", optimizers=(
        torch.optim.AdamW(theirs.parameters(), lr=1e-2), None)))
    for ours, theirs in zip(mine, reference, strict=True):  # losses, and norms before the clip
        assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("max_norm", [0.0, 0.1])
def test_a_loop_of_accelerate(max_norm):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    theirs.load_state_dict(ours.state_dict())
    prepared, optimizer = accelerator.prepare(ours, OffloadedAdamW(
        ours.parameters(), lr=0.1, accumulation_steps=2, max_norm=max_norm))
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(4, 8)
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(x).pow(2).mean())
            if accelerator.sync_gradients and not max_norm:
                accelerator.clip_grad_norm_(prepared.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        (theirs(x).pow(2).mean() / 2).backward()
        if step % 2 == 1:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
            reference.step()
            reference.zero_grad()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-6)


def deepspeed_configuration(folder, **parameters):
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {
                "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto",
                **parameters}},
            "scheduler": {"type": "WarmupCosineLR", "params": {
                "warmup_num_steps": "auto", "total_num_steps": "auto"}},
            "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto",
                                  "offload_optimizer": {"device": "nvme",
                                                        "nvme_path": str(folder)}}}


def test_a_configuration_of_deepspeed_takes_its_auto_values_from_the_arguments(tmp_path):
    usual, configured = seeded(gpt2), seeded(gpt2)
    path = tmp_path / "ds_config.json"
    (tmp_path / "state").mkdir()
    path.write_text(json.dumps(deepspeed_configuration(tmp_path / "state")))
    memory = train(make(SpillwayTrainer, usual, tmp_path / "0"))
    trainer = make(SpillwayTrainer, configured, tmp_path / "1", spillway=path)
    assert train(trainer) == memory
    assert any((tmp_path / "state").iterdir()), "nothing lies on the disk"
    with pytest.raises(spillway.InvalidArgumentError, match="lr is 0.5, the arguments say 0.01"):
        make(SpillwayTrainer, seeded(gpt2), tmp_path / "2",
             spillway=deepspeed_configuration(tmp_path / "state", lr=0.5))


def test_the_norm_of_a_trainer_with_a_loss_scale_is_that_without_one(tmp_path):
    theirs = train(make(transformers.Trainer, seeded(gpt2), tmp_path / "0", 2))
    trainer = make(SpillwayTrainer, seeded(gpt2), tmp_path / "1", 2)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for ours, reference in zip(train(trainer), theirs, strict=True):
        assert ours == pytest.approx(reference, rel=2e-3)


def test_deferred_of_a_trainer_is_a_switch(tmp_path):
    with pytest.raises(spillway.InvalidArgumentError, match="deferred of the Trainer is 'no'; it"):
        make(SpillwayTrainer, seeded(gpt2), tmp_path, spillway={"deferred": "no"})


def killed(folder):
    """Trains in a process that kills itself in step 6; the checkpoint is of step 4."""

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 6:
                os.kill(os.getpid(), signal.SIGKILL)

    train(make(SpillwayTrainer, seeded(llama).bfloat16(), folder / "run", 8, callbacks=[Kill()],
               spillway={"nvme": [folder], "state_format": "split"}))


def test_a_killed_run_goes_on_with_the_same_bits(tmp_path):
    whole = seeded(llama).bfloat16()
    expected = train(make(SpillwayTrainer, whole, tmp_path / "whole", 8,
                          spillway={"state_format": "split"}))
    done = subprocess.run([sys.executable, __file__, tmp_path], check=False,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = seeded(llama).bfloat16()
    losses = train(make(SpillwayTrainer, resumed, tmp_path / "run", 8,
                        spillway={"nvme": [tmp_path], "state_format": "split"}),
                   resume_from_checkpoint=True)
    assert losses == expected
    assert same(weights(resumed), weights(whole))


def test_a_killed_run_saves_again_where_it_had_saved(tmp_path):
    trainer = make(SpillwayTrainer, seeded(gpt2), tmp_path, 8)
    expected = train(trainer)
    state = tmp_path / "checkpoint-8/trainer_state.json"
    os.remove(state)  # as a run leaves it that is killed while it saves
    resumed = make(SpillwayTrainer, seeded(gpt2), tmp_path, 8)
    losses = train(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses == expected and state.exists()
    assert same(weights(resumed.model), weights(trainer.model))
    assert not list(tmp_path.rglob(".*partial"))


def test_a_trainer_without_the_state_of_a_checkpoint_says_so(tmp_path):
    train(make(SpillwayTrainer, seeded(gpt2), tmp_path, 4))
    checkpoint = tmp_path / "checkpoint-4"
    for optimizer in (None, OffloadedAdamW):
        model = seeded(gpt2)
        more = {} if optimizer is None else {
            "optimizers": (optimizer(model.parameters(), accumulation_steps=None), None)}
        plain = make(transformers.Trainer, model, tmp_path, 8, **more)
        with pytest.raises(Exception, match="StateIsInTheFolderSpillway"):
            plain.train(resume_from_checkpoint=str(checkpoint))
    os.rename(checkpoint / "spillway", checkpoint / "elsewhere")
    with pytest.warns(UserWarning, match="fresh moments"):
        train(make(SpillwayTrainer, seeded(gpt2), tmp_path, 5),
              resume_from_checkpoint=str(checkpoint))


def test_a_layer_that_is_not_used_is_skipped_as_torch_skips_it(tmp_path):
    runs = []
    for number, kind in enumerate((transformers.Trainer, SpillwayTrainer)):
        model = seeded(gpt2)
        model.unused = torch.nn.Linear(4, 4)
        before = weights(model.unused)
        runs.append(train(make(kind, model, tmp_path / str(number))))
        assert same(weights(model.unused), before)
    for ours, reference in zip(runs[1], runs[0], strict=True):
        assert ours == pytest.approx(reference, rel=2e-3)


def test_supervised_fine_tuning_of_adapters_has_state_for_them_alone(tmp_path):
    import datasets
    import peft
    import trl

    class OffloadedSFT(Offloaded, trl.SFTTrainer):
        pass

    text = datasets.Dataset.from_dict({"text": TEXT.splitlines()})
    losses, models = [], []
    for number, options in enumerate(({}, {"nvme": [tmp_path]})):
        args = trl.SFTConfig(output_dir=str(tmp_path / str(number)), use_cpu=True, max_steps=6,
                             logging_steps=1, report_to=[], learning_rate=1e-2, packing=True,
                             max_length=48, disable_tqdm=True, bf16=False, seed=7,
                             gradient_checkpointing=False)
        trainer = OffloadedSFT(
            model=seeded(llama), args=args, train_dataset=text, processing_class=tokenizer(),
            peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"],
                                        task_type="CAUSAL_LM"), spillway=options)
        losses.append(train(trainer))
        models.append(weights(trainer.model))
        with_state = set(trainer._offloaded()._places)
        assert with_state == {p for name, p in trainer.model.named_parameters() if "lora" in name}
    assert losses[0] == losses[1] and same(*models)
    assert losses[0][-1][0] < losses[0][0][0]


if __name__ == "__main__":
    import pathlib
    killed(pathlib.Path(sys.argv[1]))
