"""Trainers of TRL with adapters of PEFT or whole models that are streamed: the bits of models that
stay."""
import datasets
import peft
import pytest
import torch
import transformers
import trl
from tiny_trainers import SHAPE, TEXT, llama, same, seeded, tokenizer, train, weights

import spillway
from spillway.huggingface import Offloaded


class Tuning(Offloaded, trl.SFTTrainer):
    pass


class Preferring(Offloaded, trl.DPOTrainer):
    pass


class Rewarding(Offloaded, trl.RewardTrainer):
    pass


LINES = TEXT.splitlines()
TEXTS = datasets.Dataset.from_dict({"text": LINES})
PAIRS = datasets.Dataset.from_dict({
    "prompt": LINES[:12], "chosen": [line[::-1] for line in LINES[:12]],
    "rejected": LINES[12:24]})
ARGUMENTS = {"use_cpu": True, "max_steps": 3, "logging_steps": 1, "report_to": [],
             "learning_rate": 1e-2, "disable_tqdm": True, "bf16": False, "seed": 7,
             "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
             "save_strategy": "no", "max_length": 48}


def deep():
    return llama(width=64, layers=6)


def rated():
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=127, num_labels=1, **SHAPE))


def adapters():
    return peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def run_both(tmp_path, kind, config, data, make_model=deep, arguments=None, options=None,
             **more):
    """Trains a model that stays and one that is streamed; returns the second Trainer."""
    logs, models = [], []
    for number in (0, 1):
        made = {key: make() for key, make in more.items()}
        args = config(**{"output_dir": str(tmp_path / str(number)), **ARGUMENTS,
                         **(arguments or {})})
        streaming = {"device_memory": "500KB", **(options or {})} if number else {}
        trainer = kind(model=seeded(make_model), args=args, train_dataset=data,
                       processing_class=tokenizer(), spillway=streaming, **made)
        logs.append(train(trainer))
        models.append(weights(trainer.model))
    assert logs[0] == logs[1] and len(logs[0]) == 3
    assert same(*models)
    assert hasattr(trainer.model, "_spillway_streaming")
    return trainer


@pytest.mark.parametrize("reentrant", [True, False])
def test_supervised_fine_tuning_of_adapters(tmp_path, reentrant):
    run_both(tmp_path, Tuning, trl.SFTConfig, TEXTS, peft_config=adapters,
             options={"activation_memory": "8MB"}, arguments={
                 "packing": True, "gradient_checkpointing": True,
                 "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}})


def test_supervised_fine_tuning_of_all_parameters(tmp_path):
    run_both(tmp_path, Tuning, trl.SFTConfig, TEXTS, arguments={
        "eval_strategy": "steps", "eval_steps": 2}, eval_dataset=lambda: TEXTS.select(range(4)))


def test_preferences_beside_a_reference_model(tmp_path):
    trainer = run_both(tmp_path, Preferring, trl.DPOConfig, PAIRS, ref_model=lambda: seeded(deep))
    reference = trainer.ref_model
    assert hasattr(reference, "_spillway_streaming") and reference is not trainer.model
    assert same(weights(reference), weights(seeded(deep))), "it was trained"
    shard = reference._spillway_streaming._shard
    assert 0 < sum(size for tier, _, size in shard.trainer.memory() if tier == "device") <= 500_000


@pytest.mark.parametrize("beforehand", [True, False])
def test_preferences_with_the_adapters_off_as_reference(tmp_path, beforehand):
    run_both(tmp_path, Preferring, trl.DPOConfig, PAIRS, peft_config=adapters,
             arguments={"precompute_ref_log_probs": beforehand})


def test_preferences_with_other_adapters_as_reference(tmp_path):
    run_both(tmp_path, Preferring, trl.DPOConfig, PAIRS,
             make_model=lambda: peft.get_peft_model(deep(), adapters()))


def test_rewards(tmp_path):
    run_both(tmp_path, Rewarding, trl.RewardConfig, PAIRS, make_model=rated,
             arguments={"max_length": 128})


def test_a_reference_model_that_is_written_is_refused(tmp_path):
    args = trl.DPOConfig(output_dir=str(tmp_path), sync_ref_model=True, **ARGUMENTS)
    with pytest.raises(spillway.NotSupportedError, match="sync_ref_model is not supported"):
        Preferring(model=seeded(deep), ref_model=seeded(deep), args=args, train_dataset=PAIRS,
                   processing_class=tokenizer(), spillway={"device_memory": "500KB"})


def test_adapters_of_the_best_checkpoint_are_loaded(tmp_path):
    trainer = run_both(tmp_path, Tuning, trl.SFTConfig, TEXTS, peft_config=adapters, arguments={
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "load_best_model_at_end": True}, eval_dataset=lambda: TEXTS.select(range(4)))
    best = peft.PeftModel.from_pretrained(seeded(deep), trainer.state.best_model_checkpoint)
    theirs = [values for name, values in best.named_parameters() if "lora" in name]
    ours = [values for name, values in trainer.model.named_parameters() if "lora" in name]
    assert len(ours) == 24 and same(ours, theirs)
    assert torch.isfinite(ours[0]).all()
