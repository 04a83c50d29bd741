"""A training loop of PyTorch on several ranks, each of which keeps a part of the optimizer's state.

usage: torchrun --nproc-per-node 2 ranks_loop.py

Each rank computes gradients of batches of its own. The lines with the optimizer and the group are
the only ones that differ from a loop of one process.
"""
import tempfile

import torch
import torch.distributed as dist

from spillway.torch import OffloadedAdamW

TEXT = " ".join(f"{number} times {number} is {number * number}." for number in range(400))


class Model(torch.nn.Module):
    """Guesses a letter from the eight before it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.hidden = torch.nn.Linear(8 * width, 4 * width)
        self.head = torch.nn.Linear(4 * width, 256)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(torch.nn.functional.gelu(self.hidden(self.embedding(letters).flatten(1))))


def main() -> None:
    dist.init_process_group("gloo")  # torchrun says who is who
    rank = dist.get_rank()
    torch.manual_seed(rank)  # of batches; parameters become those of rank 0
    text = torch.tensor(list(TEXT.encode()))
    model = Model()
    optimizer = OffloadedAdamW(model.parameters(), lr=3e-3, max_norm=1.0, stage=2,
                               process_group=dist.group.WORLD)
    loss = torch.tensor(float("inf"))
    for step in range(60):
        starts = torch.randint(len(text) - 9, (32,))
        batch = torch.stack([text[start:start + 9] for start in starts])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch[:, :8]), batch[:, 8])
        loss.backward()  # gradients leave for the ranks that train them
        optimizer.step()  # each rank updates its part, and all get the new parameters
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {optimizer.grad_norm:.3f}")
    state = optimizer.state_dict()  # all ranks call it, and rank 0 has the state
    if rank == 0:
        print(f"loss {loss.item():.3f}")
        with tempfile.TemporaryFile() as file:
            torch.save({"model": model.state_dict(), "optimizer": state}, file)
    assert loss.item() < 3, "it has not learned"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
