"""Trains the same Llama from the same weights in the same order with Spillway and with PyTorch.

usage: peer_llama.py SPILLWAY [--device host|cuda] [--dtype fp32|bf16] [--steps N] [--work DIR]
                     [--torch-device cpu|cuda]

Needs PyTorch only: the model is written below from its published equations, so that it runs on GPU
machines without transformers. Fails unless each step's loss agrees. Prints one JSON line. Exit 77
(skipped) with --device cuda where there is no GPU.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FFN = 1000, 128, 256, 4, 4, 2, 64, 512
MICRO, ACCUMULATION, THETA, EPS, LR = 2, 2, 10000.0, 1e-5, 1e-3
# Of a loss, relative, on the host. fp32: sums in another order, 1.1e-6 after 20 steps of AdamW.
# bf16: every activation is rounded to 8 bits, by PyTorch in other places too; 3.2e-4.
BOUNDS = {"host": {"fp32": 1e-5, "bf16": 3e-3}, "cuda": {"fp32": 1e-4, "bf16": 1e-2}}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("spillway")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--dtype", choices=tuple(BOUNDS["host"]), default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--work", default=None)
    parser.add_argument("--torch-device", choices=("cpu", "cuda"),
                        help="where PyTorch trains; by default on the same device")
    return parser.parse_args()


def make_weights():
    def matrix(rows, columns):
        return torch.randn(rows, columns) * 0.02
    weights = {"model.embed_tokens.weight": matrix(VOCAB, WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": torch.ones(WIDTH),
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD, WIDTH),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, WIDTH),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, WIDTH),
            prefix + "self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD),
            prefix + "post_attention_layernorm.weight": torch.ones(WIDTH),
            prefix + "mlp.gate_proj.weight": matrix(FFN, WIDTH),
            prefix + "mlp.up_proj.weight": matrix(FFN, WIDTH),
            prefix + "mlp.down_proj.weight": matrix(WIDTH, FFN)}
    return weights | {"model.norm.weight": torch.ones(WIDTH),
                      "lm_head.weight": matrix(VOCAB, WIDTH)}


def write_checkpoint(directory, weights):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "intermediate_size": FFN, "hidden_act": "silu", "rms_norm_eps": EPS, "rope_theta": THETA,
        "tie_word_embeddings": False, "torch_dtype": "float32"}))
    header, body = {}, bytearray()
    for name, tensor in weights.items():
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def write_data(directory, tokens):
    directory.mkdir()
    (directory / "train.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens.tolist()))
    (directory / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": VOCAB}))


def rms_norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def rotate(x):
    """[batch, heads, sequence, HEAD], the rotate_half convention."""
    frequencies = 1.0 / THETA ** (torch.arange(0, HEAD, 2, device=x.device).float() / HEAD)
    angles = torch.arange(x.shape[2], device=x.device).float()[:, None] * frequencies[None, :]
    cosine, sine = (torch.cat([f(angles)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat([-high, low], -1) * sine


def forward(weights, tokens):
    x = functional.embedding(tokens, weights["model.embed_tokens.weight"])
    batch, sequence = tokens.shape
    for layer in range(LAYERS):
        def get(name):
            return weights[f"model.layers.{layer}.{name}.weight"]

        def heads(name, count):
            return (normal @ get(f"self_attn.{name}_proj").T).view(
                batch, sequence, count, HEAD).transpose(1, 2)
        normal = rms_norm(x, get("input_layernorm"))
        q, k, v = heads("q", HEADS), heads("k", KV_HEADS), heads("v", KV_HEADS)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (rotate(k), v))
        mixed = functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, sequence, -1) @ get("self_attn.o_proj").T
        normal = rms_norm(x, get("post_attention_layernorm"))
        gated = functional.silu(normal @ get("mlp.gate_proj").T) * (normal @ get("mlp.up_proj").T)
        x = x + gated @ get("mlp.down_proj").T
    return (rms_norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T).float()


def train_torch(weights, tokens, options):
    """fp32 masters and moments; the forward and backward in the compute dtype."""
    masters = {name: tensor.to(options.place).requires_grad_() for name, tensor in weights.items()}
    decayed = [p for p in masters.values() if p.dim() == 2]
    plain = [p for p in masters.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.95), eps=1e-8)
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    losses, window = [], 0
    for _ in range(options.steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATION):
            index = ((window + torch.arange(MICRO))[:, None] * CONTEXT
                     + torch.arange(CONTEXT)[None, :])
            window += MICRO
            inputs, targets = (tokens[i].to(options.place) for i in (index, index + 1))
            narrow = {name: tensor.to(compute) for name, tensor in masters.items()}
            loss = functional.cross_entropy(forward(narrow, inputs).flatten(0, 1),
                                            targets.flatten())
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
        torch.nn.utils.clip_grad_norm_(list(masters.values()), 1.0)
        optimizer.step()
        losses.append(total)
    return losses


def train_spillway(work, options):
    (work / "train.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0, "bf16": {"enabled": options.dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {
            "lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "spillway": {"context": CONTEXT, "order": "sequential", "residency": "none"}}))
    subprocess.run([options.spillway, "train", work / "train.json", "--from", work / "start",
                    "--data", work / "data", "--run", work / "run", "--steps", str(options.steps),
                    "--device", options.device], stdout=subprocess.DEVNULL, check=True)
    return [json.loads(line)["loss"] for line in (work / "run/metrics.jsonl").open()]


def main():
    options = arguments()
    options.place = options.torch_device or ("cuda" if options.device == "cuda" else "cpu")
    if options.place == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: this machine has no GPU that PyTorch can use")
        sys.exit(77)
    torch.manual_seed(1337)
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        compare(options, pathlib.Path(options.work or folder))


def compare(options, work):
    weights = make_weights()
    # A noisy cycle: something to learn.
    count = options.steps * MICRO * ACCUMULATION * CONTEXT + 1
    tokens = torch.where(torch.rand(count) < 0.2, torch.randint(0, VOCAB, (count,)),
                         torch.arange(count) * 7 % VOCAB)
    write_checkpoint(work / "start", weights)
    write_data(work / "data", tokens)
    ours = train_spillway(work, options)
    theirs = train_torch(weights, tokens, options)
    difference = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(json.dumps({"device": options.device, "dtype": options.dtype, "steps": options.steps,
                      "largest_relative_difference": difference,
                      "first_losses": [ours[0], theirs[0]], "last_losses": [ours[-1], theirs[-1]]}))
    assert len(ours) == options.steps
    assert options.steps < 20 or ours[-1] < ours[0] - 0.5, "nothing was learnt"
    assert difference <= BOUNDS[options.device][options.dtype], f"losses differ by {difference}"


if __name__ == "__main__":
    main()
