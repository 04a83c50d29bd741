"""Trains nanoGPT's small configuration in bf16 once with each format of the optimizer's state.

usage: format_training.py SPILLWAY --text FILE [--steps N] [--work DIR]

Characters, 4 layers, 4 heads, width 128, context 64, batch 12, AdamW 1e-3 to 1e-4 cosine, 100
warm-up, beta2 0.99, weight decay 0.1, clip 1.0, shuffled; state on disk. Prints one JSON line: the
validation loss of each format, the differences from fp32, and whether split has fp32's bits.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

FORMATS = ("fp32", "split", "bf16", "int8")


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def metrics(path):
    """The lines of metrics.jsonl without what may differ between equal runs."""
    lines = [json.loads(line) for line in path.open()]
    differing = ("seconds", "exposed", "ahead")
    return [{k: v for k, v in line.items() if k not in differing} for line in lines]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("spillway")
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--work", default=None)
    options = parser.parse_args()
    work = pathlib.Path(options.work or tempfile.mkdtemp())
    data = run(options.spillway, "data", options.text, "--out", work / "data", "--tokenizer",
               "chars", "--json")
    (work / "model.json").write_text(json.dumps({
        "model_type": "gpt2", "vocab_size": data["vocab_size"], "n_positions": 64, "n_embd": 128,
        "n_layer": 4, "n_head": 4, "activation_function": "gelu_new", "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}))
    loss = {}
    for name in FORMATS:
        (work / f"{name}.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 12, "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {
                "lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}},
            "scheduler": {"type": "Cosine", "params": {"warmup_num_steps": 100, "min_lr": 1e-4}},
            "spillway": {"context": 64, "seed": 1234, "state_format": name}}))
        loss[name] = run(options.spillway, "train", work / f"{name}.json", "--model",
                         work / "model.json", "--data", work / "data", "--run", work / name,
                         "--steps", options.steps, "--nvme", tempfile.mkdtemp(dir=work),
                         "--json")["val_loss"]
    print(json.dumps({
        "val_loss": loss, "difference": {name: abs(loss[name] - loss["fp32"]) for name in FORMATS},
        "split_is_fp32": metrics(work / "split/metrics.jsonl") == metrics(
            work / "fp32/metrics.jsonl")}))


if __name__ == "__main__":
    main()
