"""How the state formats store Adam's moments between steps, from the papers that they come from.

`bf16` rounds at random, up with the probability that makes the mean exact. `int8` stores codes of
the dynamic maps of Dettmers et al. 2022 ("8-bit Optimizers via Block-wise Quantization", with the
boundaries of their released code) and the largest value of each 256 parameters. What is drawn, and
which parameters share a block of 256, is each implementation's own: the reference draws from
PyTorch's generator and lets blocks begin with each tensor, or `phase` parameters before it.
"""
import torch

BLOCK = 256


def dynamic_map(signed):
    """Seven decades, each with twice the values of the one below, at the middles of equal parts."""
    values = [0.0, 1.0]
    for decade in range(7):
        parts = 2 ** decade * (1 if signed else 2)
        edges = torch.linspace(0.1, 1, parts + 1, dtype=torch.float64)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        values += middles.tolist() + ((-middles).tolist() if signed else [])
    assert len(values) == 256
    return torch.tensor(sorted(values), dtype=torch.float64)


class StateFormat:
    """`store_m` and `store_v` give the moments as the next step reads them."""

    def __init__(self, name, draws, phase):
        self.name = name
        self.generator = torch.Generator().manual_seed(draws)
        self.phase = phase
        self.of_m = dynamic_map(signed=True)
        # Nothing is coded as zero: a quotient by the root of v could grow without bound.
        self.of_v = dynamic_map(signed=False)[1:]

    def store_m(self, m):
        return self.store(m, self.of_m)

    def store_v(self, v):
        return self.store(v, self.of_v)

    def store(self, moment, values):
        narrow = moment.to(torch.float32)
        if self.name == "bf16":
            narrow = self.drawn(narrow)
        elif self.name == "int8":
            narrow = self.coded(narrow.double(), values).to(torch.float32)
        return narrow.to(moment.dtype)

    def drawn(self, moment):
        draws = torch.randint(0, 2 ** 16, moment.shape, generator=self.generator,
                              dtype=torch.int32)
        return ((moment.view(torch.int32) + draws) & -0x10000).view(torch.float32)

    def coded(self, moment, values):
        flat = torch.nn.functional.pad(moment.flatten(), (self.phase, 0))
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
        largest = flat.abs().amax(1, keepdim=True)
        shares = torch.where(largest > 0, flat / largest, 0.0)
        middles = (values[:-1] + values[1:]) / 2
        decoded = values[torch.bucketize(shares, middles)] * largest
        return decoded.flatten()[self.phase:self.phase + moment.numel()].view(moment.shape)
