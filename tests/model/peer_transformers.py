"""Compares tiny random models of every family with Hugging Face transformers.

usage: peer_transformers.py MODEL_PROBE [--dtype fp32] [--device host|cuda]

Loss, logits and every parameter gradient in fp32: max|a - b| / max|b| <= 1e-5 for each tensor.
In bf16 and fp16 the yardstick is transformers itself in that dtype: against the fp32 result of the
same parameters, no tensor of ours may be further off, in the 2-norm, than FACTOR times its tensor,
or than one rounding of the dtype where that one happens to be better.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
SMALL = dict(vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)


def make(kind, **changes):
    t = transformers
    if kind == "gpt2":
        base = dict(vocab_size=131, n_positions=128, n_embd=48, n_layer=2, n_head=4,
                    attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
        return t.GPT2LMHeadModel(t.GPT2Config(**{**base, **changes}))
    config, model = {"llama": (t.LlamaConfig, t.LlamaForCausalLM),
                     "mistral": (t.MistralConfig, t.MistralForCausalLM),
                     "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM),
                     "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM)}[kind]
    return model(config(**{**SMALL, **changes}))


def rope(**parameters):
    """The rope fields as this version of transformers spells them."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}
    theta = parameters.pop("rope_theta", 10000.0)
    return {"rope_theta": theta, **({"rope_scaling": parameters} if parameters else {})}


CASES = [
    # name, family, config changes, batch, sequence
    ("gpt2", "gpt2", {}, 2, 37),
    ("gpt2-untied-erf", "gpt2", dict(tie_word_embeddings=False, activation_function="gelu"), 2, 19),
    ("gpt2-odd-width", "gpt2", dict(n_embd=42, n_head=3, n_inner=101), 3, 65),
    ("gpt2-long", "gpt2", dict(n_layer=1), 1, 128),
    ("llama", "llama", dict(tie_word_embeddings=False), 2, 37),
    ("llama-tied-mha", "llama", dict(tie_word_embeddings=True, num_key_value_heads=4), 2, 65),
    ("llama3-rope", "llama", rope(rope_theta=500000.0, **LLAMA3), 2, 100),
    # Wavelengths 6.3, 29, 135, ...: one is kept, one lies between the bands 16 and 64, one beyond.
    ("llama3-rope-bands", "llama", rope(**LLAMA3 | {"original_max_position_embeddings": 64}),
     2, 100),
    ("llama-linear-rope", "llama", rope(rope_type="linear", factor=4.0), 2, 33),
    ("llama-biases", "llama", dict(attention_bias=True, mlp_bias=True), 2, 21),
    ("llama-head-dim", "llama", dict(head_dim=20), 2, 37),
    ("mistral", "mistral", dict(sliding_window=None), 2, 37),
    ("mistral-one-kv", "mistral", dict(num_key_value_heads=1, sliding_window=None), 2, 64),
    ("qwen2", "qwen2", dict(tie_word_embeddings=True), 2, 37),
    ("qwen2-untied", "qwen2", dict(tie_word_embeddings=False), 2, 70),
    ("qwen3", "qwen3", dict(head_dim=24, tie_word_embeddings=True), 2, 37),
    ("qwen3-untied", "qwen3", dict(head_dim=16, tie_word_embeddings=False,
                                   num_key_value_heads=4), 2, 16),
    ("gpt2-padding", "gpt2", dict(pad_token_id=2), 2, 37),
    ("llama-padding", "llama", dict(tie_word_embeddings=False, pad_token_id=2), 2, 37),
    ("llama-tied-padding", "llama", dict(tie_word_embeddings=True, pad_token_id=-1), 2, 37),
    ("mistral-padding", "mistral", dict(sliding_window=None, pad_token_id=0), 2, 37),
    ("qwen2-padding", "qwen2", dict(tie_word_embeddings=True, pad_token_id=130), 2, 37),
    ("qwen3-padding", "qwen3", dict(head_dim=24, tie_word_embeddings=True, pad_token_id=64),
     2, 37),
]
FP32_BOUND = 1e-5
FACTOR = 2.0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SKIPPED = 77  # the probe's exit code, and ours, where there is no GPU
ONE_ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def randomize(model, seed):
    """Every parameter away from its special initial value: zero biases would hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.2 + (0.0 if name.endswith("bias") else 1.0))
            else:
                parameter.copy_(noise * (0.7 / parameter.shape[-1] ** 0.5))


def reference(model, tokens, targets):
    """Loss, logits of the last micro-batch and gradients, computed in the model's dtype."""
    model.zero_grad()
    total = targets.numel()
    loss = 0.0
    for x, y in zip(tokens, targets):
        logits = model(input_ids=x, use_cache=False).logits
        part = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten(),
                                                 reduction="sum") / total
        part.backward()
        loss += part.item()
    tensors = {name: p.grad.float().numpy() for name, p in model.named_parameters()}
    logits = logits.detach().float().numpy()
    return {"loss": np.array([loss]), "logits": logits, "last_logits": logits[:, -1], **tensors}


def run_probe(probe, device, directory, tokens, targets, dtype, threads, activations, kernels):
    micro_batches, batch, sequence = tokens.shape
    pairs = torch.stack([tokens, targets], dim=1).to(torch.int32).numpy()
    pairs.tofile(directory / "tokens.bin")
    run = subprocess.run([probe, directory, directory / "tokens.bin", directory / "out", dtype,
                          str(batch), str(sequence), str(threads), activations,
                          str(micro_batches), kernels, device])
    if run.returncode == SKIPPED:
        sys.exit(SKIPPED)
    run.check_returncode()
    values = np.fromfile(directory / "out.bin", dtype=np.float32)
    document = json.loads((directory / "out.json").read_text())
    tensors = {name: values[first:first + count]
               for name, (first, count) in document["tensors"].items()}
    return {"loss": np.array([document["loss"]]), **tensors}


def errors_of(tensors, exact, order):
    """|a - b| / |b| of every tensor, in the norm of `order` (inf or 2)."""
    assert tensors.keys() == exact.keys(), tensors.keys() ^ exact.keys()

    def error(a, b):
        assert a.size == b.size, (a.shape, b.shape)
        a, b = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
        return float(np.linalg.norm(a - b, order) / np.linalg.norm(b, order))
    return {name: error(tensors[name], exact[name]) for name in exact}


def check_case(probe, device, case, dtype, threads, activations, kernels, micro_batches):
    name, family, changes, batch, sequence = case
    torch.manual_seed(1)
    model = make(family, **changes).eval().float()
    randomize(model, seed=len(name))
    # The same rounded parameters on all sides.
    model = model.to(DTYPES[dtype]).float()
    vocabulary = model.config.vocab_size
    tokens = torch.randint(vocabulary, (micro_batches, batch, sequence))
    targets = torch.randint(vocabulary, (micro_batches, batch, sequence))
    if model.config.pad_token_id is not None:
        # The token is meant: it is among the inputs and the targets.
        tokens[..., 3::5] = targets[..., 2::7] = model.config.pad_token_id % vocabulary
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        # That of the model refuses some padding tokens, and nothing is generated.
        model.generation_config = transformers.GenerationConfig()
        model.save_pretrained(directory)
        tensors = run_probe(probe, device, directory, tokens, targets, dtype, threads,
                            activations, kernels)
    exact = reference(model, tokens, targets)
    if dtype == "fp32":
        errors = errors_of(tensors, exact, np.inf)
        return errors, dict.fromkeys(errors, FP32_BOUND)
    theirs = errors_of(reference(model.to(DTYPES[dtype]), tokens, targets), exact, 2)
    return errors_of(tensors, exact, 2), {
        name: max(FACTOR * error, ONE_ROUNDING[dtype]) for name, error in theirs.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--device", default="host", choices=["host", "cuda"])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    variants = itertools.cycle([(1, "kept", "", 1), (2, "recomputed", "", 2),
                                (2, "kept", "avx2", 2), (1, "recomputed", "portable", 1)])
    for case, (threads, activations, kernels, micro_batches) in zip(CASES, variants):
        if options.only not in case[0]:
            continue
        errors, bounds = check_case(options.probe, options.device, case, options.dtype, threads,
                                    activations, kernels, micro_batches)
        worst = max(errors, key=lambda name: errors[name] / bounds[name])
        good = errors[worst] <= bounds[worst]
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {case[0]:20} {options.dtype} loss {errors['loss']:.1e}"
              f" logits {errors['logits']:.1e} worst {worst} {errors[worst]:.1e} of"
              f" {bounds[worst]:.1e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
