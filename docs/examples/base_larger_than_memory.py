"""Fine-tunes adapters of a base that fits neither the device nor host memory.

usage: base_larger_than_memory.py [HF_DIR DEVICE DEVICE_MEMORY DISK]

HF_DIR is a checkpoint of Hugging Face, such as that of a Llama of 405 billion parameters, DEVICE
"cuda", DEVICE_MEMORY "20GB" and DISK a folder on a drive. The model is built without values, which
then come from the files of the checkpoint straight to DISK, block by block. Without arguments it
makes a small checkpoint and computes on the CPU.
"""
import pathlib
import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, get_peft_model

import spillway.torch
from spillway.torch import OffloadedAdamW, load_checkpoint, offload_model

TEXT = " ".join(f"{number} times {number} is {number * number}." for number in range(400))


def make_checkpoint(folder: pathlib.Path) -> None:
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=256, num_hidden_layers=6,
        num_attention_heads=4)).bfloat16().save_pretrained(folder, max_shard_size="200KB")


def main(folder: pathlib.Path, device: str, device_memory: str, disk: str) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    load_checkpoint(model, folder, nvme=disk)
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    print(spillway.torch.plan(model, device_memory=device_memory, device=device, frozen="nvme",
                              frozen_nvme=disk))
    offload_model(model, device_memory, device=device, frozen="nvme", frozen_nvme=disk)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = OffloadedAdamW(adapters, lr=1e-2, max_norm=1.0)
    text = torch.tensor(list(TEXT.encode()))
    losses: list[float] = []
    model.train()
    for step in range(10):
        starts = torch.randint(len(text) - 33, (2,),
                               generator=torch.Generator().manual_seed(step))
        batch = torch.stack([text[start:start + 32] for start in starts]).to(device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 5 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}")
    model.save_pretrained(str(folder / "adapters"))
    assert losses[-1] < losses[0], "it has not learned"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            make_checkpoint(pathlib.Path(temporary))
            main(pathlib.Path(temporary), "cpu", "900KB", temporary)
