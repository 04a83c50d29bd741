"""Groups of parameters: the hyperparameters that torch's dictionaries and native trainers share."""
from __future__ import annotations

from typing import Any

import torch

from spillway._load import native
from spillway.errors import NotSupportedError
from spillway.torch._lifetime import WithLifetime


class WithGroups(WithLifetime):
    """An optimizer whose trainers follow `param_groups`."""

    kind = ""                      #: of the native update
    decoupled = False              #: weight decay acts on the parameter
    refused: tuple[str, ...] = ()  #: keys of torch's groups that must be off

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raises for what torch's optimizers do and ours do not."""
        for key in self.refused:
            if group.get(key):
                raise NotSupportedError(f"a parameter group has {key}={group[key]}, which is not "
                                        "supported; leave it out")

    def _set_groups(self) -> None:
        for shard in self._shards:
            updates = shard.trainer.updates
            for place, number in enumerate(shard.groups):
                shard.trainer.set_group(place, self._hyperparameters(number, updates))

    def _learning_rate(self, group: dict[str, Any], updates: int) -> float:
        return float(group["lr"])

    def _first_state(self, group: dict[str, Any], shape: torch.Size) -> torch.Tensor | None:
        return None

    def _hyperparameters(self, number: int, updates: int) -> Any:
        group = self.param_groups[number]
        self._check_group(group)
        native_group = native.Group()
        native_group.optimizer = self.kind
        native_group.decoupled = self.decoupled
        native_group.lr = self._learning_rate(group, updates)
        native_group.beta1, native_group.beta2 = group.get("betas", (group.get("momentum", 0), 0))
        native_group.eps = group.get("eps", 0.0)
        native_group.weight_decay = group["weight_decay"]
        native_group.bias_correction = group.get("bias_correction", True)
        return native_group
