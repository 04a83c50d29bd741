"""Resuming a Trainer from a checkpoint that somebody has changed: what transformers' own Trainer
makes of it, or a warning."""
import os
import shutil
import warnings

import pytest
import torch
import transformers
from huggingface_test import gpt2, llama, make, same, seeded, train, weights

from spillway.huggingface import SpillwayTrainer


def resumed(kind, folder, make_model=gpt2, **more):
    """Returns the losses and norms of steps 5 to 8, the trainer, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make(kind, seeded(make_model), folder, 8, **more)
        losses = train(trainer, resume_from_checkpoint=str(folder / "checkpoint-4"))
    return losses[4:], trainer, [str(each.message) for each in caught
                                 if "checkpoint-4" in str(each.message)]


def other_weights(checkpoint):
    torch.manual_seed(5)
    gpt2().save_pretrained(checkpoint)


def one_other_weight(checkpoint):
    model = transformers.GPT2LMHeadModel.from_pretrained(checkpoint)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight.mul_(-1)
    model.save_pretrained(checkpoint)


def state_of_another_step(checkpoint):
    """Puts the state of step 2, which was kept beside it, into the checkpoint."""
    for name in ("spillway", "optimizer.pt"):
        there, kept = checkpoint / name, checkpoint.parent / "two" / name
        if kept.is_dir():
            shutil.rmtree(there)
            shutil.copytree(kept, there)
        elif kept.exists():
            shutil.copyfile(kept, there)


class KeepsTwo(transformers.TrainerCallback):
    """Saves after step 2 too, and keeps that in the folder `two`."""

    def on_step_end(self, args, state, control, **_):
        control.should_save |= state.global_step == 2

    def on_save(self, args, state, control, **_):
        if state.global_step == 2:
            os.rename(os.path.join(args.output_dir, "checkpoint-2"),
                      os.path.join(args.output_dir, "two"))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("change, said", [
    (other_weights, "28 parameters"), (one_other_weight, "h.1.mlp.c_fc.weight"),
    (state_of_another_step, "28 parameters")])
def test_weights_that_the_state_was_not_saved_with_are_used(tmp_path, change, said, deferred):
    runs = []
    for kind, more in ((transformers.Trainer, {}),
                       (SpillwayTrainer, {"spillway": {"deferred": deferred}})):
        folder = tmp_path / kind.__name__
        train(make(kind, seeded(gpt2), folder, 8, callbacks=[KeepsTwo()], **more))
        change(folder / "checkpoint-4")
        runs.append(resumed(kind, folder, **more))
    (theirs, _, _), (ours, _, caught) = runs
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(reference, rel=2e-3)
    assert len(caught) == 1 and said in caught[0] and "other weights" in caught[0]


@pytest.mark.parametrize("removed", ["nothing", "optimizer.pt", "scheduler.pt"])
def test_the_schedule_goes_on_or_a_warning_says_that_it_does_not(tmp_path, removed):
    def brief():
        return seeded(llama).bfloat16()

    spillway = {"state_format": "split"}
    whole = make(SpillwayTrainer, brief(), tmp_path, 8, spillway=spillway)
    expected = train(whole)[4:]
    if removed != "nothing":
        os.remove(tmp_path / "checkpoint-4" / removed)
    losses, trainer, caught = resumed(SpillwayTrainer, tmp_path, brief, spillway=spillway)
    goes_on = removed != "scheduler.pt"
    assert (losses == expected) == goes_on
    assert same(weights(trainer.model), weights(whole.model)) == goes_on
    assert len(caught) == (not goes_on)
    if not goes_on:
        assert "no scheduler.pt" in caught[0] and "begins again" in caught[0]


def test_adapters_of_a_checkpoint_are_those_that_train(tmp_path):
    import peft

    def adapted():
        return peft.get_peft_model(seeded(gpt2), peft.LoraConfig(
            r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"))

    def negated(checkpoint):
        import safetensors.torch

        path = checkpoint / "adapter_model.safetensors"
        safetensors.torch.save_file(
            {name: -each for name, each in safetensors.torch.load_file(path).items()}, path)

    losses = []
    for kind in (transformers.Trainer, SpillwayTrainer):
        folder = tmp_path / kind.__name__
        train(make(kind, adapted(), folder, 8))
        assert resumed(kind, folder, adapted)[2] == []
        negated(folder / "checkpoint-4")
        losses.append(resumed(kind, folder, adapted)[0])
    for mine, reference in zip(*losses, strict=True):
        assert mine == pytest.approx(reference, rel=2e-3)
