"""torch.optim's optimizers, with their state in the host memory or on the disk of Spillway."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spillway.errors import NotSupportedError
from spillway.torch._offloaded import OffloadedOptimizer, refuse

__all__ = ["OffloadedAdagrad", "OffloadedAdam", "OffloadedAdamW", "OffloadedLion",
           "OffloadedOptimizer", "OffloadedSGD"]

Params = Iterable[Any]


class _Adam(OffloadedOptimizer):
    kind = "adam"
    state_names: Mapping[str, str] = {"m": "exp_avg", "v": "exp_avg_sq"}

    def __init__(self, params: Params, lr: float, betas: tuple[float, float], eps: float,
                 weight_decay: float, amsgrad: bool, maximize: bool, **options: Any) -> None:
        refuse(amsgrad=amsgrad)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay, "amsgrad": False,
                                  "maximize": False}, maximize=maximize, **options)

    def _decouples(self, group: Mapping[str, Any]) -> bool:
        return bool(group.get("decoupled_weight_decay", self.decoupled))

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        for group in saved.get("param_groups", ()):  # a hook may have left them out
            group.setdefault("decoupled_weight_decay", self.decoupled)
        return saved

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes groups of a state; those of Adam become AdamW's where that loads them, as torch's
        do."""
        super().__setstate__(state)
        for group in self.param_groups:
            if self.decoupled and "decoupled_weight_decay" in group:
                group["decoupled_weight_decay"] = True


class OffloadedAdamW(_Adam):
    """AdamW as torch.optim.AdamW computes it, within roundings of fp32.

    `params` are parameters, named parameters or groups of them, whose `data` moves into memory that
    the optimizer owns. `lr`, `betas`, `eps` and `weight_decay` are those of torch.optim.AdamW, for
    each group. Other arguments are those of `OffloadedOptimizer`.
    """

    decoupled = True

    def __init__(self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False,
                 maximize: bool = False, **options: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize, **options)


class OffloadedAdam(_Adam):
    """Adam as torch.optim.Adam computes it: weight decay goes through the gradient, but for groups
    with `decoupled_weight_decay`, which is there as in a loaded state of AdamW."""

    decoupled = False

    def __init__(self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False,
                 maximize: bool = False, decoupled_weight_decay: bool = False,
                 **options: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize, **options)
        if decoupled_weight_decay:
            for each in (self.defaults, *self.param_groups):
                each.setdefault("decoupled_weight_decay", True)


class OffloadedAdagrad(OffloadedOptimizer):
    """Adagrad as torch.optim.Adagrad computes it."""

    kind = "adagrad"
    decoupled = False
    state_names: Mapping[str, str] = {"v": "sum"}

    def __init__(self, params: Params, lr: float = 1e-2, lr_decay: float = 0.0,
                 weight_decay: float = 0.0, initial_accumulator_value: float = 0.0,
                 eps: float = 1e-10, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "eps": eps,
                                  "weight_decay": weight_decay,
                                  "initial_accumulator_value": initial_accumulator_value},
                         **options)

    def _learning_rate(self, group: dict[str, Any], updates: int) -> float:
        return float(group["lr"]) / (1 + updates * float(group["lr_decay"]))

    def _step_shards(self, divisor: float, max_norm: float) -> tuple[float, bool]:
        decays = any(group["lr_decay"] for group in self.param_groups)
        skips = self._options["missing"] == "skip"
        for shard in self._with_gradients() if decays and skips else ():
            if (name := shard.first_without_gradient()) is not None:
                raise NotSupportedError(
                    f"{name} has no gradient, and with lr_decay its rate would be one of its own: "
                    'freeze it, leave lr_decay out, or make the optimizer with missing="zero"')
        return super()._step_shards(divisor, max_norm)

    def _first_state(self, group: dict[str, Any], shape: torch.Size) -> torch.Tensor | None:
        value = group["initial_accumulator_value"]
        return torch.full(shape, value, dtype=torch.float32, device="cpu") if value else None


class OffloadedLion(OffloadedOptimizer):
    """Lion (Chen et al. 2023), with decoupled weight decay."""

    kind = "lion"
    decoupled = True
    state_names: Mapping[str, str] = {"m": "exp_avg"}

    def __init__(self, params: Params, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay},
                         **options)


class OffloadedSGD(OffloadedOptimizer):
    """SGD with momentum as torch.optim.SGD computes it."""

    _without_momentum: set[int]  #: groups that were updated so, whose buffers have a last gradient

    kind = "sgd"
    decoupled = False
    state_names: Mapping[str, str] = {"m": "momentum_buffer"}
    counts_steps = False

    def __init__(self, params: Params, lr: float = 1e-3, momentum: float = 0.0,
                 dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
                 **options: Any) -> None:
        refuse(dampening=dampening, nesterov=nesterov)
        self._without_momentum: set[int] = set()
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                                  "dampening": 0, "nesterov": False}, **options)

    def _step_shards(self, divisor: float, max_norm: float) -> tuple[float, bool]:
        for number, group in enumerate(self.param_groups):
            if group["momentum"] and number in self._without_momentum:
                raise NotSupportedError(
                    f"the momentum of group {number} is {group['momentum']} after steps with 0, "
                    "which keep no momentum buffer to go on from: make a new optimizer with "
                    f"momentum={group['momentum']}, whose buffers are empty as torch's are then")
        result = super()._step_shards(divisor, max_norm)
        self._note_momentum()
        return result

    def _note_momentum(self) -> None:
        new = {number for number, group in enumerate(self.param_groups)
               if not group["momentum"]} - self._without_momentum
        for shard, index in self._places.values() if new else ():
            if shard.entries[index].group in new and shard.updates(index) > 0:
                self._without_momentum.add(shard.entries[index].group)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = super()._state_of(parameter)
        shard, index = self._places[parameter]
        if shard.entries[index].group in self._without_momentum:
            del state["momentum_buffer"]
        return state

    def _state_replaced(self, by_folder: bool) -> None:
        self._without_momentum = set()  # buffers of a state_dict are such as to go on from
        if by_folder:
            self._note_momentum()
