"""A model whose layers are blocks of a test's own, between an embedding and a head."""
import torch
from torch.utils.checkpoint import checkpoint


class BlockModel(torch.nn.Module):
    """`recomputes`: activations of a block are computed again in its backward pass."""

    def __init__(self, block, blocks, width, recomputes=False):
        super().__init__()
        self.embedding = torch.nn.Linear(4, width)
        self.blocks = torch.nn.ModuleList(block(width) for _ in range(blocks))
        self.head = torch.nn.Linear(width, 1)
        self.recomputes = recomputes

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x).square().mean()
