"""The reference trainer: steps of rounds of micro-batches, clipping, loss scale, optimizers.

Written from the formulas of the papers and of PyTorch's documentation. Everything is computed in
`wide` (fp64) and stored as Spillway says that it stores it: masters in fp32, moments as the state
format has them, parameters and each round's gradient in the compute type, sums of several rounds in
fp32.
"""
import dataclasses
import math

import torch

from model import Model
from rounding import TYPES, narrow, parameters_of


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a configuration says, with the reference's own names."""
    compute: str = "fp32"
    optimizer: str = "AdamW"
    lr: float = 2e-3
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-4
    momentum: float = 0.9
    weight_decay: float = 0.1
    decay: str = "matrices"
    clip: float = 0.0
    micro_batch: int = 2
    micro_batches: int = 4
    rounds: int = 1
    loss_scale: float = 0.0  # fp16; 0: dynamic
    first_scale_power: int = 20  # overflows at first, whatever the model
    hysteresis: int = 3
    scale_window: int = 4


@dataclasses.dataclass
class Record:
    losses: list
    norms: list
    scales: list
    masters: dict
    windows: int = 0
    skipped: int = 0


def fp32(x):
    return x.to(torch.float32).to(x.dtype)


class Optimizer:
    def __init__(self, recipe, masters, state):
        self.recipe = recipe
        self.state = state
        self.t = 0
        self.m = {name: torch.zeros_like(p) for name, p in masters.items()}
        self.v = {name: torch.zeros_like(p) for name, p in masters.items()}

    def decay_of(self, master):
        recipe = self.recipe
        return recipe.weight_decay if recipe.decay == "all" or master.dim() > 1 else 0.0

    def apply(self, masters, gradients):
        self.t += 1
        rule = {"AdamW": self.adam, "Adam": self.adam, "Adagrad": self.adagrad, "Lion": self.lion,
                "SGD": self.sgd}[self.recipe.optimizer]
        for name, master in masters.items():
            masters[name] = fp32(rule(name, master, gradients[name], self.decay_of(master)))
            self.m[name] = self.state.store_m(self.m[name])
            self.v[name] = self.state.store_v(self.v[name])

    def adam(self, name, p, g, decay):
        recipe = self.recipe
        if recipe.optimizer == "Adam":
            g = g + decay * p  # L2
        else:
            p = p * (1 - recipe.lr * decay)
        b1, b2 = recipe.betas
        self.m[name] = b1 * self.m[name] + (1 - b1) * g
        self.v[name] = b2 * self.v[name] + (1 - b2) * g * g
        mean = self.m[name] / (1 - b1 ** self.t)
        return p - recipe.lr * mean / ((self.v[name] / (1 - b2 ** self.t)).sqrt() + recipe.eps)

    def adagrad(self, name, p, g, decay):
        g = g + decay * p
        self.v[name] = self.v[name] + g * g
        return p - self.recipe.lr * g / (self.v[name].sqrt() + self.recipe.eps)

    def lion(self, name, p, g, decay):
        b1, b2 = self.recipe.betas
        direction = torch.sign(b1 * self.m[name] + (1 - b1) * g)
        self.m[name] = b2 * self.m[name] + (1 - b2) * g
        return p * (1 - self.recipe.lr * decay) - self.recipe.lr * direction

    def sgd(self, name, p, g, decay):
        self.m[name] = self.recipe.momentum * self.m[name] + g + decay * p
        return p - self.recipe.lr * self.m[name]


class LossScale:
    """DeepSpeed's rule: an overflow halves the scale once the hysteresis is used up; the step after
    each full window of steps without one doubles it and fills the hysteresis up again."""

    def __init__(self, recipe):
        self.dynamic = recipe.compute == "fp16" and recipe.loss_scale == 0
        self.window, self.hysteresis = recipe.scale_window, recipe.hysteresis
        self.left = recipe.hysteresis
        self.step, self.last_overflow = 0, -1
        static = recipe.loss_scale if recipe.compute == "fp16" else 1.0
        self.value = 2.0 ** recipe.first_scale_power if self.dynamic else static

    def update(self, overflow):
        if not self.dynamic:
            return
        stable = self.step - self.last_overflow - 1
        if not overflow and stable > 0 and stable % self.window == 0:
            self.value *= 2
            self.left = self.hysteresis
        elif overflow and self.left > 1:
            self.left -= 1
        elif overflow:
            self.value = max(self.value / 2, 1.0)
        if overflow:
            self.last_overflow = self.step
        self.step += 1


class Trainer:
    def __init__(self, shape, recipe, weights, tokens, order, state, wide=torch.float64):
        self.shape, self.recipe, self.tokens, self.order = shape, recipe, tokens, order
        self.dtype = TYPES[recipe.compute]
        self.wide = wide
        self.model = Model(shape, self.dtype)
        self.masters = {name: p.to(wide) for name, p in weights.items()}
        self.optimizer = Optimizer(recipe, self.masters, state)
        self.scale = LossScale(recipe)
        self.record = Record([], [], [], self.masters)

    def next_batch(self):
        rows = [self.order(self.record.windows + i) for i in range(self.recipe.micro_batch)]
        self.record.windows += len(rows)
        context = self.shape.context
        rows = torch.stack([self.tokens[row * context:(row + 1) * context + 1] for row in rows])
        return rows[:, :-1], rows[:, 1:]

    def gradients(self):
        """Loss sum and the landed gradients, still scaled."""
        recipe = self.recipe
        tokens = recipe.micro_batch * recipe.micro_batches * self.shape.context
        loss, landed = 0.0, {}
        scale = torch.tensor(self.scale.value / tokens, dtype=torch.float32).item()
        for _ in range(recipe.rounds):
            leaves = {name: parameters_of(p, self.dtype).clone().requires_grad_()
                      for name, p in self.masters.items()}
            for _ in range(recipe.micro_batches // recipe.rounds):
                inputs, targets = self.next_batch()
                loss += self.model.backward(self.model.logits(leaves, inputs), targets, scale)
            for name, leaf in leaves.items():
                rounded = narrow(leaf.grad, self.dtype)
                landed[name] = fp32(landed[name] + rounded) if name in landed else rounded
        return loss / tokens, landed

    def step(self):
        record, recipe = self.record, self.recipe
        loss, landed = self.gradients()
        scale = self.scale.value
        norm = math.sqrt(sum(g.double().square().sum().item() for g in landed.values())) / scale
        record.losses.append(loss)
        record.norms.append(norm)
        record.scales.append(scale)
        self.scale.update(overflow=not math.isfinite(norm))
        if not math.isfinite(norm):
            record.skipped += 1
            return
        clip = min(1.0, recipe.clip / (norm + 1e-6)) if recipe.clip > 0 else 1.0
        self.optimizer.apply(self.masters, {name: g * (clip / scale) for name, g in landed.items()})

    def run(self, steps):
        for _ in range(steps):
            self.step()
        return self.record
