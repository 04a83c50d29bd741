"""Fine-tunes a checkpoint of Hugging Face with the native engine, in less device memory than it has
parameters, and with its optimizer state on disk.

usage: fine_tune.py [HF_DIR DATA FOLDER]

DATA is what `tools/python/spillway_tokenize.py HF_DIR TEXT... --out DATA` writes. For a model of 7
billion parameters on a GPU of 24 GB the program is the same, with device_memory="22GB". Without
arguments it makes a small Llama and data of its own.
"""
import json
import pathlib
import sys
import tempfile
from typing import Any

import spillway

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    "gradient_clipping": 1.0,
    "spillway": {"context": 64, "tile_parameters": 65536},
}


def make_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=False)).bfloat16().save_pretrained(folder)
    return folder


def make_data(folder: pathlib.Path) -> pathlib.Path:
    """Bytes as tokens: little-endian 16-bit numbers, as nanoGPT writes them."""
    text = "".join(f"{n} and {n} make {2 * n}. " for n in range(3000)).encode()
    folder.mkdir()
    cut = len(text) * 9 // 10
    for name, part in (("train.bin", text[:cut]), ("val.bin", text[cut:])):
        (folder / name).write_bytes(b"".join(byte.to_bytes(2, "little") for byte in part))
    (folder / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 256}))
    return folder


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        own = pathlib.Path(temporary)
        if arguments:
            checkpoint, data, folder = map(pathlib.Path, arguments)
        else:
            checkpoint, data, folder = make_checkpoint(own / "hf"), make_data(own / "data"), own
        where: dict[str, Any] = {
            "device_memory": "4MB" if not arguments else "22GB", "nvme": [str(folder)]}
        plan = spillway.plan(CONFIG, checkpoint=checkpoint, run=folder / "run", **where)
        print(plan)
        report = spillway.train(CONFIG, checkpoint=checkpoint, data=data, run=folder / "run",
                                steps=40, progress=False, **where)
        first, last = report.history[0], report.history[-1]
        print(f"the loss went from {first.loss:.3f} to {last.loss:.3f} in {last.step} steps; "
              f"spillway export {folder / 'run'} HF_DIR writes the model")


if __name__ == "__main__":
    main(sys.argv[1:])
