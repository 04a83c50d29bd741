"""A training loop of PyTorch whose optimizer state lies on disk.

usage: pytorch_loop.py [FOLDER]      (the disk of this folder; a temporary one)

The lines with the optimizer are the only ones that know Spillway.
"""
import pathlib
import sys
import tempfile

import torch

from spillway.torch import OffloadedAdamW

TEXT = " ".join(f"{number} times {number} is {number * number}." for number in range(400))


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, context: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.position = torch.nn.Parameter(torch.zeros(context, width))
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.embedding(tokens) + self.position[:length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def main(folder: str) -> None:
    torch.manual_seed(0)
    text = torch.tensor(list(TEXT.encode()))
    model = Model()
    optimizer = OffloadedAdamW(model.parameters(), lr=3e-3, nvme=[folder], max_norm=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    loss = torch.tensor(float("inf"))
    for step in range(60):
        starts = torch.randint(len(text) - 65, (8,))
        batch = torch.stack([text[start:start + 65] for start in starts])
        optimizer.zero_grad()
        scores = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # each gradient leaves as soon as it is ready, and is freed
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {optimizer.grad_norm:.3f}")
    print(f"loss {loss.item():.3f}")
    optimizer.save(pathlib.Path(folder) / "checkpoint")
    assert loss.item() < 3, "it has not learned"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
