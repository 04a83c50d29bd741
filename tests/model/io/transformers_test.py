"""Checkpoints exchanged with transformers, both ways, for every family.

usage: transformers_test.py CHECKPOINT_TOOL
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

TOOL = sys.argv.pop(1)
SMALL = dict(vocab_size=61, initializer_range=0.5)
LLAMA = dict(
    SMALL, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=24)
GPT2 = dict(SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=24)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=12)

CONFIGS = {
    "gpt2": transformers.GPT2Config(**GPT2),
    "gpt2_untied": transformers.GPT2Config(
        **GPT2, tie_word_embeddings=False, n_inner=40, activation_function="gelu"),
    "llama": transformers.LlamaConfig(**LLAMA),
    "llama_tied_head_dim": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, head_dim=16),
    "llama_biased_llama3": transformers.LlamaConfig(
        **LLAMA, attention_bias=True, mlp_bias=True,
        rope_parameters=dict(LLAMA3, rope_theta=500000.0)),
    "llama_linear": transformers.LlamaConfig(
        **LLAMA, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0)),
    "mistral": transformers.MistralConfig(**LLAMA),
    "mistral_no_window": transformers.MistralConfig(**LLAMA, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**LLAMA),
    "qwen2_window": transformers.Qwen2Config(
        **LLAMA, use_sliding_window=True, sliding_window=24, max_window_layers=1),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=16, tie_word_embeddings=True),
    "qwen3_biased": transformers.Qwen3Config(**LLAMA, head_dim=16, attention_bias=True),
}


def tool(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout


def make_model(config):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # norms and biases too: a swap of two must show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def load(path, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, output_loading_info=True, local_files_only=True)
    problems = {k: v for k, v in info.items() if v}
    if problems:
        raise AssertionError(f"{path}: {problems}")
    return model.eval()


def logits(model):
    tokens = torch.arange(40).reshape(2, 20) % 61
    with torch.no_grad():
        return model(tokens).logits


def to_version_4(path):
    """Rewrites config.json as transformers 4 wrote it."""
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    config.pop("layer_types", None)
    (path / "config.json").write_text(json.dumps(config))


def architecture(config):
    ignored = {"_name_or_path", "dtype", "transformers_version", "architectures"}
    return {k: v for k, v in config.to_dict().items() if k not in ignored}


def shards(path):
    """Names of a checkpoint's files, as (name, the name at its place in their number)."""
    names = sorted(file.name for file in path.glob("*.safetensors"))
    if names == ["model.safetensors"]:
        return [(names[0], names[0])]
    return [(name, f"model-{i:05}-of-{len(names):05}.safetensors")
            for i, name in enumerate(names, start=1)]


class Exchange(unittest.TestCase):
    def setUp(self):
        # In memory where possible: the tool's many fsync calls would wait for a busy disk.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        directory = tempfile.TemporaryDirectory(dir=memory)
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)

    def same_parameters(self, ours, theirs):
        ours, theirs = dict(ours.named_parameters()), dict(theirs.named_parameters())
        self.assertEqual(ours.keys(), theirs.keys())
        for name, value in theirs.items():
            self.assertEqual(ours[name].dtype, value.dtype, name)
            self.assertTrue(torch.equal(ours[name], value), name)

    def check_copy(self, model, source, dtype, names, shard):
        target = pathlib.Path(f"{source}-out")
        tool("copy", source, target, names[0], shard)
        for path in (source, target):  # transformers names its own so, and tools count on it
            for name, expected in shards(path):
                self.assertEqual(name, expected)
        again = load(target, "auto")
        self.assertEqual(again.dtype, dtype)
        self.same_parameters(again, model)
        # Not with `model`: casting it has cast its rotary frequencies too.
        self.assertTrue(torch.equal(logits(again), logits(load(source, "auto"))))
        self.assertEqual(architecture(AutoConfig.from_pretrained(target)),
                         architecture(AutoConfig.from_pretrained(source)))

    def test_checkpoints_of_every_family_come_back_as_they_were(self):
        for family, config in CONFIGS.items():
            for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16"),
                                (torch.float16, "fp16")):
                for read, write in (("50GB", 10**9), ("20KB", 20000)):
                    if read == "20KB" and dtype != torch.float32:
                        continue  # shards hold bytes; their type makes no difference
                    with self.subTest(family=family, dtype=name, shard=read):
                        model = make_model(config).to(dtype)
                        source = self.root / f"{family}-{name}-{read}"
                        model.save_pretrained(source, max_shard_size=read)
                        self.check_copy(model, source, dtype, (name,), write)
                        if dtype == torch.float32:
                            to_version_4(source)
                            tool("copy", source, f"{source}-4", name, write)
                            self.same_parameters(load(f"{source}-4", "auto"), model)
                            again = AutoConfig.from_pretrained(f"{source}-4")
                            self.assertEqual(architecture(again), architecture(
                                AutoConfig.from_pretrained(source)))

    def test_both_layouts_of_config_json_mean_the_same(self):
        for family, config in CONFIGS.items():
            with self.subTest(family=family):
                source = self.root / family
                config.save_pretrained(source)
                text = json.loads((source / "config.json").read_text())
                text.setdefault("dtype", "float32")
                (source / "config.json").write_text(json.dumps(text))
                newer = tool("describe", source / "config.json")
                to_version_4(source)
                self.assertEqual(tool("describe", source / "config.json"), newer)

    def test_bodies_saved_without_their_head_are_read(self):
        for family in ("gpt2", "llama_tied_head_dim", "qwen3"):
            with self.subTest(family=family):
                model = make_model(CONFIGS[family])
                source = self.root / family
                model.base_model.save_pretrained(source)
                tool("copy", source, f"{source}-out", "fp32", 10**9)
                self.same_parameters(load(f"{source}-out", "auto"), model)

    def test_models_made_here_load_and_have_the_initialisation_of_transformers(self):
        for family in ("gpt2", "gpt2_untied", "llama", "llama_biased", "mistral", "qwen2", "qwen3"):
            with self.subTest(family=family):
                target = self.root / family
                tool("make", family, target)
                ours = load(target, "auto")
                theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(target))
                for (name, a), (_, b) in zip(
                        ours.named_parameters(), theirs.named_parameters(), strict=True):
                    if b.std() == 0:
                        self.assertTrue(torch.equal(a, b), name)
                    else:  # 5 standard errors of each of two estimates
                        error = 5 * (2 / b.numel())**0.5
                        self.assertAlmostEqual((a.std() / b.std()).item(), 1, delta=error, msg=name)
                self.assertTrue(torch.isfinite(logits(ours)).all())
                again = self.root / f"{family}-again"
                ours.save_pretrained(again)
                self.assertEqual(tool("describe", again / "config.json"),
                                 tool("describe", target / "config.json"))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    unittest.main(verbosity=2)
