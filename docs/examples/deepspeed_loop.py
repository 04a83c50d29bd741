"""A loop that is written for DeepSpeed's engine, with the import changed.

usage: deepspeed_loop.py [deepspeed]      (with the word, DeepSpeed itself trains)
"""
import json
import os
import sys

import torch

if sys.argv[1:] == ["deepspeed"]:
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0",
                      WORLD_SIZE="1", LOCAL_RANK="0")
    import deepspeed
else:
    import spillway.torch as deepspeed

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95],
                                              "weight_decay": 0.1, "torch_adam": True}},
    "scheduler": {"type": "WarmupDecayLR", "params": {
        "warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 3, "total_num_steps": 12}},
}


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    inputs = torch.randn(80, 8)
    targets = inputs.sum(dim=1, keepdim=True).tanh()
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG)
    for epoch in range(2):
        for start in range(0, 80, 4):
            outputs = engine(inputs[start:start + 4])
            loss = torch.nn.functional.mse_loss(outputs, targets[start:start + 4])
            engine.backward(loss)
            engine.step()
            print(json.dumps({"step": engine.global_steps, "lr": engine.get_lr()[0],
                              "loss": loss.item()}))


if __name__ == "__main__":
    main()
