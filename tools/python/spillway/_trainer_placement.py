"""What accelerate does with the models and the optimizer of a Trainer: nothing that moves them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spillway.torch._alone import processes


def leave_in_place(accelerator: Any, streams: Callable[[torch.nn.Module], bool]) -> None:
    """Makes accelerate leave models that are streamed where they are, models of ranks without
    DistributedDataParallel, and state of the optimizer in host memory.

    `streams` is given a model and returns whether it is streamed.
    """
    prepare_model, prepare_optimizer = accelerator.prepare_model, accelerator.prepare_optimizer

    def model_in_place(model: torch.nn.Module, device_placement: bool | None = None,
                       evaluation_mode: bool = False) -> torch.nn.Module:
        if streams(model):
            device_placement = False
        # What is prepared for training is put in DistributedDataParallel.
        return prepare_model(model, device_placement, evaluation_mode or processes() > 1)

    def optimizer_in_place(optimizer: Any, device_placement: bool | None = None) -> Any:
        return prepare_optimizer(optimizer, device_placement=False)

    accelerator.prepare_model = model_in_place
    accelerator.prepare_optimizer = optimizer_in_place
