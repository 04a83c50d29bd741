"""A script that is written for DeepSpeed, with the import changed. It makes the calls of
https://www.deepspeed.ai/getting-started in the same order: arguments, engine, checkpoint, loop.

usage: deepspeed_loop.py [deepspeed] [--save_dir DIR] [--load_dir DIR [--ckpt_id ID]]
       (with the word, DeepSpeed itself trains)
"""
import argparse
import json
import os
import pathlib
import sys

import torch

if sys.argv[1:2] == ["deepspeed"]:
    del sys.argv[1]
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0",
                      WORLD_SIZE="1", LOCAL_RANK="0")
    import deepspeed
else:
    import spillway.torch as deepspeed

CONFIG = pathlib.Path(__file__).with_name("ds_config.json")


class Regression(torch.nn.Module):
    """Gives the loss of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1, help="from DeepSpeed's launcher")
    parser.add_argument("--save_dir", help="checkpoints go there")
    parser.add_argument("--save_interval", type=int, default=20)
    parser.add_argument("--load_dir", help="goes on from a checkpoint there")
    parser.add_argument("--ckpt_id", help="which one; without it the latest")
    parser = deepspeed.add_config_arguments(parser)
    parser.set_defaults(deepspeed_config=str(CONFIG))
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = Regression()
    inputs = torch.randn(80, 8)
    targets = inputs.sum(dim=1, keepdim=True).tanh()
    batches = list(zip(inputs.split(4), targets.split(4), strict=True)) * 2
    model_engine, optimizer, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters())
    first = 0
    if args.load_dir:
        _, client_sd = model_engine.load_checkpoint(args.load_dir, args.ckpt_id)
        first = client_sd["step"] + 1
    for step, batch in enumerate(batches[first:], first):
        loss = model_engine(batch)
        model_engine.backward(loss)
        model_engine.step()
        print(json.dumps({"step": model_engine.global_steps, "lr": model_engine.get_lr()[0],
                          "loss": loss.item()}))
        if args.save_dir and (step + 1) % args.save_interval == 0:
            model_engine.save_checkpoint(args.save_dir, step, client_state={"step": step})


if __name__ == "__main__":
    main()
