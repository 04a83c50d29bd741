"""Training speed without a GPU, side by side with PyTorch on the CPU of the same machine.

usage: train_speed.py SPILLWAY [--dtype fp32|bf16] [--steps N] [--repetitions N] [--layers N]

GPT of 6 layers, width 384, 6 heads, context 256, batch 16, 256 tokens of vocabulary, clip 1.0,
fused AdamW, activations kept, 2 threads.
Runs alternate: Spillway, Spillway with state on disk, torch
eager, torch.compile, and so on, each in a process of its own, so that a noisy minute hits all.
Prints one JSON line; tokens/s are medians over repetitions of the median step of a run.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

CONTEXT, BATCH, VOCAB, THREADS = 256, 16, 256, 2


def parse(torch_kinds):
    parser = argparse.ArgumentParser()
    parser.add_argument("spillway")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--torch", choices=torch_kinds, help=argparse.SUPPRESS)
    return parser.parse_args()


def torch_model(options):
    import torch
    import transformers

    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=384, n_layer=options.layers, n_head=6,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
        use_cache=False, bos_token_id=0, eos_token_id=0))


def torch_step_seconds(options, forward, model, batch):
    """The median time of a step of `batch` sequences, the first two left out."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99),
                                  weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(options.steps):
        tokens = torch.randint(VOCAB, (batch, CONTEXT + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            logits = forward(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(),
                                                     tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def torch_run(options):
    import torch

    torch.set_num_threads(THREADS)
    model = torch_model(options)
    forward = torch.compile(model) if options.torch == "compile" else model
    print(json.dumps({"seconds": torch_step_seconds(options, forward, model, BATCH)}))


def last_json(command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])


def prepare(options):
    """A folder with the model and the data."""
    work = pathlib.Path(tempfile.mkdtemp())
    text = bytes((i * i * 31 + i * 7) % 251 for i in range(600_000))
    (work / "text").write_bytes(text)
    (work / "model.json").write_text(json.dumps({
        "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 384,
        "n_layer": options.layers, "n_head": 6, "activation_function": "gelu_new",
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}))
    last_json([options.spillway, "data", work / "text", "--out", work / "data", "--tokenizer",
               "bytes", "--val", "0", "--json"])
    return work


def spillway_run(options, work, *, ranks=1, stage=0, disk=False):
    """The median step of a run whose ranks share the batch and the threads."""
    config = {"train_micro_batch_size_per_gpu": BATCH // ranks, "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": {
                  "lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}},
              "zero_optimization": {"stage": stage},
              "spillway": {"context": CONTEXT, "checkpointing": "keep",
                           "compute": options.dtype, "commit_every": 1 if disk else 1000000}}
    (work / "train.json").write_text(json.dumps(config))
    run = pathlib.Path(tempfile.mkdtemp(dir=work))
    threads = THREADS // ranks
    launcher = [] if ranks == 1 else ["mpirun", "-n", ranks, "--bind-to", "core"]
    if launcher and os.geteuid() == 0:
        launcher.append("--allow-run-as-root")
    nvme = ["--nvme", tempfile.mkdtemp(dir=work)] if disk else []
    last_json([*launcher, options.spillway, "train", work / "train.json",
               "--model", work / "model.json", "--data", work / "data", "--run", run,
               "--steps", options.steps, "--threads", threads, "--compute-threads", threads,
               "--json", *nvme])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    return statistics.median(line["seconds"] for line in lines[2:])


def main():
    options = parse(["eager", "compile"])
    if options.torch:
        torch_run(options)
        return
    work = prepare(options)
    seconds = {}
    for _ in range(options.repetitions):
        for name in ("spillway", "spillway_nvme", "torch_eager", "torch_compile"):
            if name.startswith("torch"):
                value = last_json([sys.executable, __file__, options.spillway, "--dtype",
                                   options.dtype, "--steps", options.steps, "--layers",
                                   options.layers, "--torch", name.split("_")[1]])["seconds"]
            else:
                value = spillway_run(options, work, disk=name.endswith("nvme"))
            seconds.setdefault(name, []).append(value)
    speed = {name: BATCH * CONTEXT / statistics.median(values) for name, values in seconds.items()}
    print(json.dumps({
        "dtype": options.dtype, "tokens_per_second": speed,
        "ratio_to_faster_torch":
            speed["spillway"] / max(speed["torch_eager"], speed["torch_compile"]),
        "disk_cost": speed["spillway"] / speed["spillway_nvme"] - 1}))


if __name__ == "__main__":
    main()
