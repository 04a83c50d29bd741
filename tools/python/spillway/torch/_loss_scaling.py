"""Backward passes of the engine: losses are divided by the micro-batches of a step and multiplied
by the loss scale, whoever calls backward."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd import Variable

from spillway.errors import InvalidArgumentError


class LossScaling:
    """Watches what an engine's model returns: a gradient that comes there from a backward pass of
    the program's own is divided as `engine.backward` divides its loss."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._in_backward = False
        self._in_step = False
        self._is_scaled = False

    def backward(self, loss: torch.Tensor, retain_graph: bool) -> None:
        """Runs backward with the loss scale."""
        self._in_backward = True
        try:
            (loss * self._configuration.loss_scale).backward(retain_graph=retain_graph)
        finally:
            self._in_backward = False

    def scale_now(self) -> float:
        """Returns what the gradients of the step under way were multiplied by."""
        return self._configuration.loss_scale

    def step(self, optimizer: Any) -> None:
        """Makes the optimizer divide by the loss scale in its step."""
        self._in_step = True
        try:
            optimizer.step(divisor=self._configuration.loss_scale)
        finally:
            self._in_step = False

    def check_step(self, *_: Any) -> None:
        """Raises before a step of the optimizer that the program asks for, and that would not."""
        if self._configuration.loss_scale != 1 and not self._in_step:
            raise InvalidArgumentError(
                f"optimizer.step() with the loss scale {self._configuration.loss_scale} of fp16, "
                "by which it does not divide gradients: call engine.step()")

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the loss scale; the program calls backward for it."""
        self._is_scaled = True
        return loss * self._configuration.loss_scale

    def watch(self, outputs: Any) -> None:
        """Watches the tensors of the model's outputs, in lists and dicts too."""
        if isinstance(outputs, torch.Tensor):
            if outputs.requires_grad and not outputs.is_leaf:
                outputs.register_hook(self._take)
        elif isinstance(outputs, Mapping):
            self.watch(list(outputs.values()))
        elif isinstance(outputs, (list, tuple)):
            for each in outputs:
                self.watch(each)

    def _take(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._in_backward:
            return gradient
        if self._configuration.loss_scale != 1 and not self._is_scaled:
            raise InvalidArgumentError(
                f"loss.backward() with the loss scale {self._configuration.loss_scale} of fp16, "
                "which it does not apply: call engine.backward(loss), or "
                "engine.scale(loss).backward()")
        Variable._execution_engine.queue_callback(self.end_pass)
        return gradient / self._configuration.accumulation_steps

    def end_pass(self) -> None:
        """Begins anew: the next backward pass needs a scaled loss of its own."""
        self._is_scaled = False
