"""Backward passes of the engine: losses are divided by the micro-batches of a step and multiplied
by the loss scale, whoever calls backward."""
from __future__ import annotations

import copy
import functools
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.autograd import Variable

from spillway.errors import InvalidArgumentError
from spillway.torch._handed_over import Uses


class LossScaling:
    """Watches what an engine's model returns: a gradient that comes there from a backward pass of
    the program's own is divided as `engine.backward` divides its loss."""

    def __init__(self, configuration: Any) -> None:
        self.micro_batches = configuration.accumulation_steps  #: of a step
        self._configuration = configuration
        self._in_backward = False
        self._in_own = False     # a backward pass of the program's own
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

    def watch(self, outputs: Any) -> Any:
        """Returns the model's outputs with their tensors watched, in lists, dicts and tuples too,
        and in attributes of another object."""
        if isinstance(outputs, torch.Tensor):
            return self._watched(outputs)
        if isinstance(outputs, list):
            return [self.watch(each) for each in outputs]
        if isinstance(outputs, tuple):
            each = [self.watch(each) for each in outputs]
            return type(outputs)(*each) if hasattr(outputs, "_fields") else type(outputs)(each)
        if isinstance(outputs, MutableMapping):
            outputs = copy.copy(outputs)  # the model may go on with its own
            for name, each in list(outputs.items()):
                outputs[name] = self.watch(each)
        elif hasattr(outputs, "__dict__") and not isinstance(outputs, (type, torch.nn.Module)):
            found = {name: self._watched(each) for name, each in vars(outputs).items()
                     if isinstance(each, torch.Tensor) and each.requires_grad}
            if found:
                outputs = copy.copy(outputs)
                vars(outputs).update(found)
        return outputs

    def _watched(self, output: torch.Tensor) -> torch.Tensor:
        """Returns another tensor of the same values. The hook is on that one, which a loss of the
        model is not made of: no gradient passes two hooks."""
        if not output.requires_grad or output.is_leaf:
            return output
        # A view would lose its hook where the program writes it in place, as `loss /= 2` does.
        is_large = output.layout == torch.strided and output.numel() > 1
        output = output.view_as(output) if is_large else output.clone()
        output.register_hook(self._take)
        return output

    def watch_gradients(self, optimizer: Any) -> None:
        """Makes steps raise for gradients of a backward pass that nothing here took part in."""
        for parameter, (shard, index) in optimizer._places.items():
            note = functools.partial(self._note, optimizer._uses, shard.entries[index].name)
            optimizer._lifetime.hooks.append(parameter.register_post_accumulate_grad_hook(note))

    def _note(self, uses: Uses, name: str, _: torch.Tensor) -> None:
        scale, divisor = self._configuration.loss_scale, self.micro_batches
        is_right = divisor == 1 and (scale == 1 or self._is_scaled)
        if not (self._in_backward or self._in_own or is_right):
            uses.note_unwatched(name)

    def _take(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._in_backward:
            return gradient
        if self._configuration.loss_scale != 1 and not self._is_scaled:
            raise InvalidArgumentError(
                f"loss.backward() with the loss scale {self._configuration.loss_scale} of fp16, "
                "which it does not apply: call engine.backward(loss), or "
                "engine.scale(loss).backward()")
        self._in_own = True
        Variable._execution_engine.queue_callback(self.end_pass)
        return gradient / self.micro_batches

    def end_pass(self) -> None:
        """Begins anew: the next backward pass needs a scaled loss of its own."""
        self._in_own = self._is_scaled = False
