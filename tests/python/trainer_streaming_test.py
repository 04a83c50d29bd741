"""Trainers whose models are streamed: the bits of the same Trainers with models that stay, and
nothing that moves a model."""
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch
import transformers
from tiny_trainers import SHAPE, examples, gpt2, llama, make, same, seeded, train, weights

import spillway
from spillway import _trainer_streaming
from spillway.huggingface import Offloaded, SpillwayTrainer
from spillway.torch import OffloadedAdamW


BUDGET = "400KB"  # of 1 MB


def deep():
    return llama(width=64, layers=6)


def pinned(model):
    """A model that must not be moved."""
    def moved(*_, **__):
        raise AssertionError("the model was moved")
    model.to = model.cuda = model.cpu = moved
    return model


def size_of(model):
    return sum(parameter.nbytes for parameter in model.parameters())


def on_device(trainer):
    (shard,) = trainer._offloaded()._shards
    return sum(size for tier, _, size in shard.trainer.memory() if tier == "device")


def run_both(tmp_path, make_model, options=None, kind=SpillwayTrainer, blocks_of=None, **more):
    """Trains a model that stays and one that is streamed through half of its size; returns both
    Trainers, which have the same bits."""
    trainers, logs = [], []
    for number in (0, 1):
        model = seeded(make_model)
        budget = size_of(model) // 2
        blocks = {} if blocks_of is None else {"blocks": blocks_of(model)}
        streaming = {"device_memory": budget, **blocks, **(options or {})} if number else {
            key: value for key, value in (options or {}).items() if key != "activation_memory"}
        trainer = make(kind, pinned(model) if number else model, tmp_path / str(number),
                       spillway=streaming, **more)
        logs.append(train(trainer))
        trainers.append(trainer)
    assert logs[0] == logs[1]
    assert same(*(weights(trainer.model) for trainer in trainers))
    assert 0 < on_device(trainers[1]) <= budget
    assert not hasattr(trainers[0].model, "_spillway_streaming")
    return trainers


CHECKPOINTING = {"gradient_checkpointing": True,
                 "gradient_checkpointing_kwargs": {"use_reentrant": False}}
REENTRANT = {"gradient_checkpointing": True,
             "gradient_checkpointing_kwargs": {"use_reentrant": True}}


@pytest.mark.parametrize("make_model, options, arguments", [
    (deep, {}, {}),
    (lambda: deep().bfloat16(), {"state_format": "split", "deferred": True}, {}),
    (deep, {"activation_memory": "8MB"}, {}),
    (deep, {"activation_memory": "8MB"}, CHECKPOINTING),
    (deep, {}, REENTRANT), (deep, {}, {"bf16": True}),
    (deep, {}, {"bf16": True, **CHECKPOINTING})])
def test_a_streamed_model_has_the_bits_of_one_that_stays(tmp_path, make_model, options, arguments):
    run_both(tmp_path, make_model, options, arguments=arguments)


def test_a_frozen_base_on_disk_has_the_bits_of_one_in_host_memory(tmp_path):
    def frozen():
        model = deep()
        for layer in model.model.layers[:4]:
            layer.mlp.requires_grad_(False)
        return model

    logs = []
    (tmp_path / "disk").mkdir()
    for options in ({}, {"frozen": "nvme", "nvme": tmp_path / "disk"}):
        trainer = make(SpillwayTrainer, seeded(frozen), tmp_path / str(len(logs)),
                       spillway={"device_memory": "600KB", **options})
        logs.append(train(trainer))
    assert logs[0] == logs[1]
    (shard,) = trainer._offloaded()._shards
    assert ("nvme", "frozen parameters") in {each[:2] for each in shard.trainer.memory()}


def test_autocast_keeps_no_casts_of_parameters(tmp_path):
    def note(*_):
        caches.append(torch.is_autocast_cache_enabled())

    caches = []
    model = seeded(deep)
    model.model.layers[3].register_forward_pre_hook(note)
    train(make(SpillwayTrainer, model, tmp_path, 1, arguments={"bf16": True},
               spillway={"device_memory": BUDGET}))
    assert caches == [False] * 3


def test_evaluation_and_best_model_are_those_of_a_model_that_stays(tmp_path):
    arguments = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "save_steps": 2,
                 "load_best_model_at_end": True, "save_only_model": True, "save_total_limit": 2}
    trainers = run_both(tmp_path, deep, arguments=arguments, eval_dataset=examples()[:8])
    losses = [[entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
              for trainer in trainers]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    guesses = [trainer.predict(examples()[:4]).predictions for trainer in trainers]
    assert (guesses[0] == guesses[1]).all()
    checkpoint = next((tmp_path / "1").glob("checkpoint-*"))
    assert not (checkpoint / "spillway").exists() and not (checkpoint / "optimizer.pt").exists()


def test_a_streamed_model_is_evaluated_before_it_is_trained(tmp_path):
    whole = make(transformers.Trainer, seeded(deep), tmp_path)
    trainer = make(SpillwayTrainer, pinned(seeded(deep)), tmp_path,
                   spillway={"device_memory": BUDGET})
    assert trainer.evaluate(examples()[:8])["eval_loss"] == (
        whole.evaluate(examples()[:8])["eval_loss"])
    before = weights(trainer.model)
    keeper = trainer.model._spillway_streaming.until_trained
    train(trainer)
    assert not same(weights(trainer.model), before)
    with pytest.raises(spillway.InvalidArgumentError, match="has ended"):
        keeper.step()


def test_a_model_that_the_program_has_offloaded_stays_there(tmp_path):
    model = seeded(deep)
    _trainer_streaming.offload_model(model, BUDGET)
    trainer = make(SpillwayTrainer, pinned(model), tmp_path / "0")
    whole = make(SpillwayTrainer, seeded(deep), tmp_path / "1")
    assert train(trainer) == train(whole) and same(weights(model), weights(whole.model))
    with pytest.raises(spillway.InvalidArgumentError, match="device_memory.* offloaded already"):
        make(SpillwayTrainer, model, tmp_path, spillway={"device_memory": BUDGET})


def test_a_model_that_is_made_when_training_begins_is_streamed(tmp_path):
    trainers = []
    for options in ({}, {"device_memory": BUDGET}):
        trainers.append(make(SpillwayTrainer, None, tmp_path / str(len(trainers)),
                             model_init=deep, spillway=options))
        train(trainers[-1])
    assert same(*(weights(trainer.model) for trainer in trainers))
    assert 0 < on_device(trainers[1]) <= 400_000


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=64, d_kv=32, d_ff=128, num_layers=4, num_heads=2, dropout_rate=0.0,
        pad_token_id=127, decoder_start_token_id=0, **SHAPE))


def blocks_of_both_stacks(model):
    return [*model.encoder.block, *model.decoder.block]


class Seq2Seq(Offloaded, transformers.Seq2SeqTrainer):
    pass


@pytest.mark.parametrize("is_trained", [True, False])
def test_texts_are_generated_within_an_evaluation(tmp_path, is_trained):
    def keep_tokens(guessed):
        seen.append(guessed.predictions.copy())
        return {}

    seen = []
    arguments = {"predict_with_generate": True, "generation_max_length": 6,
                 "eval_strategy": "steps", "eval_steps": 3}
    more = {"arguments": arguments, "kind_of_arguments": transformers.Seq2SeqTrainingArguments,
            "eval_dataset": examples()[:4], "compute_metrics": keep_tokens}
    if is_trained:
        run_both(tmp_path, t5, kind=Seq2Seq, blocks_of=blocks_of_both_stacks, **more)
    else:
        for number in (0, 1):
            model = seeded(t5)
            make(Seq2Seq, model, tmp_path, **more, spillway={
                "device_memory": "900KB", "blocks": blocks_of_both_stacks(model)}
                if number else {}).evaluate()
    half = len(seen) // 2
    assert half == (2 if is_trained else 1)
    assert all((a == b).all() for a, b in zip(seen[:half], seen[half:], strict=True))


def killed(folder):
    """Trains in a process that kills itself in step 6; the checkpoint is of step 4."""

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 6:
                os.kill(os.getpid(), signal.SIGKILL)

    train(make(SpillwayTrainer, seeded(deep), folder / "run", 8, callbacks=[Kill()],
               spillway={"device_memory": BUDGET, "nvme": [folder]}))


def test_a_killed_run_goes_on_with_the_same_bits(tmp_path):
    whole = seeded(deep)
    expected = train(make(SpillwayTrainer, whole, tmp_path / "whole", 8))
    done = subprocess.run([sys.executable, __file__, tmp_path], check=False, capture_output=True,
                          encoding="utf-8")
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = pinned(seeded(deep))
    assert expected == train(
        make(SpillwayTrainer, resumed, tmp_path / "run", 8,
             spillway={"device_memory": BUDGET, "nvme": [tmp_path]}), resume_from_checkpoint=True)
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_batch_that_is_too_large_is_made_smaller(tmp_path, direction):
    def runs_out(module, tensors):
        if tensors[0].shape[0] > 2:
            ran_out.append(tensors[0].shape[0])
            raise RuntimeError("CUDA out of memory.")

    def small():
        model = deep()
        getattr(model.model.layers[3], {
            "forward": "register_forward_pre_hook",
            "backward": "register_full_backward_pre_hook"}[direction])(runs_out)
        return model

    ran_out = []
    run_both(tmp_path, small, arguments={"auto_find_batch_size": True})
    assert 4 in ran_out and max(ran_out) == 4


def test_what_a_streamed_model_cannot_have_is_refused(tmp_path, monkeypatch):
    def refused(words, error=spillway.NotSupportedError, options=None, **more):
        with pytest.raises(error, match=words):
            make(SpillwayTrainer, seeded(gpt2), tmp_path,
                 spillway={"device_memory": "1MB"} if options is None else options, **more)

    for variable in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):
        monkeypatch.setenv(variable, "no")  # and restores them
    refused("with torch_compile is not", arguments={"torch_compile": True})
    os.environ["ACCELERATE_DYNAMO_BACKEND"] = "no"
    refused(r"bf16_full_eval.*model\.to", arguments={"bf16_full_eval": True})
    refused("activation_memory", arguments={
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"offload": True}})
    with monkeypatch.context() as patch:
        patch.setattr(transformers.TrainingArguments, "n_gpu", 2)
        refused("2 GPUs in one process.*CUDA_VISIBLE_DEVICES")
    refused("blocks is given without device_memory", spillway.InvalidArgumentError,
            options={"blocks": [1]})
    refused("stage of the Trainer is 3", spillway.InvalidArgumentError, options={"stage": 3})
    refused("process_group of the Trainer", spillway.InvalidArgumentError,
            options={"process_group": None})


def test_the_device_is_the_one_that_the_trainer_computes_on(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def offload(model, device_memory, device, blocks):
        assert (device_memory, device, blocks) == ("1MB", torch.device("cuda", 3), ["those"])
        raise Stop

    monkeypatch.setattr(_trainer_streaming, "offload_model", offload)
    monkeypatch.setattr(transformers.TrainingArguments, "device", torch.device("cuda", 3))
    with pytest.raises(Stop):
        make(SpillwayTrainer, seeded(gpt2), tmp_path,
             spillway={"device_memory": "1MB", "blocks": ["those"], "activation_memory": None})


def test_what_is_given_is_not_loaded_again(tmp_path):
    # accelerate would load a state_dict of the optimizer, on its device.
    model = seeded(gpt2)
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-2, accumulation_steps=None)
    optimizer.load_state_dict = None
    train(make(SpillwayTrainer, model, tmp_path, optimizers=(optimizer, None)))


if __name__ == "__main__":
    killed(pathlib.Path(sys.argv[1]))
