"""Parameters of one element type in a native trainer, which owns their memory from then on."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._device import device_of

_version_of = operator.attrgetter("_version")

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def in_memory(elements: int) -> torch.Tensor:
    """Returns fp32 elements."""
    return torch.empty(elements, dtype=torch.float32)


class Registered(NamedTuple):
    """A parameter, the number of its group in the optimizer, and its name in errors."""

    parameter: torch.nn.Parameter
    group: int
    name: str
    unit: int | None = None  # of a model whose parameters are streamed


def check_parameter(registered: Registered) -> None:
    """Raises for a parameter that cannot be offloaded."""
    check_frozen(registered)
    parameter, name = registered.parameter, registered.name
    if parameter.dtype not in DTYPES:
        raise NotSupportedError(
            f"{name} has elements of {parameter.dtype}; they must be float32, bfloat16 or float16: "
            "model.to(torch.float32)")


def check_frozen(registered: Registered) -> None:
    """Raises for a parameter that cannot be in a trainer's memory, whether it is trained or not."""
    parameter, name = registered.parameter, registered.name
    if parameter.device.type not in ("cpu", "cuda"):
        raise NotSupportedError(
            f"{name} is on {parameter.device}: this version offloads parameters that are CPU or "
            "CUDA tensors; make the optimizer before model.to(device)")
    if parameter.device.type == "cuda" and registered.unit is not None:
        raise NotSupportedError(
            f"{name} is on {parameter.device}: offload_model takes the parameters of blocks from "
            "the CPU and brings them to the device that it is given; call model.cpu() first, then "
            "offload_model(model, device_memory=..., device=\"cuda\")")
    if parameter.layout != torch.strided or type(parameter.data) is not torch.Tensor:
        raise NotSupportedError(f"{name} is a {type(parameter.data).__name__} with layout "
                                f"{parameter.layout}; it must be a plain dense tensor")


def check_memory(parameters: list[Registered]) -> None:
    """Raises if two parameters lie in the same memory, which moving them would separate."""
    places = sorted((entry.parameter.data_ptr(),
                     entry.parameter.data_ptr() + entry.parameter.nbytes, entry.name)
                    for entry in parameters)
    for (_, end, first), (start, _, second) in itertools.pairwise(places):
        if start < end:
            raise InvalidArgumentError(
                f"{first} and {second} are two parameters in the same memory; tie them by using "
                "one nn.Parameter in both places")


class Shard:
    """Owns the memory of some parameters and trains them.

    `parameters` are of one dtype; the values are copied, and each parameter's `data` then refers
    to the trainer's memory, which is that of `place` but for streamed ones. So it is with `frozen`
    ones of any dtype, which nobody trains. `entries` has both, in that order. `groups` are the
    numbers of the optimizer's groups that have a parameter here, in the order of the trainer's own.
    """

    def __init__(self, parameters: list[Registered], frozen: list[Registered],
                 hyperparameters: dict[int, Any], options: Any, place: torch.device) -> None:
        self.entries = [*parameters, *frozen]
        self._parameters = [entry.parameter for entry in self.entries]
        self._trained = len(parameters)
        self.groups = sorted({entry.group for entry in parameters})
        options.dtype = DTYPES[parameters[0].parameter.dtype]
        options.groups = [hyperparameters[group] for group in self.groups]
        self._device = device_of(place)
        self._device.configure(options)
        with self._device.current():
            self.trainer = native.Trainer(options, [
                (entry.name, self.groups.index(entry.group),
                 entry.parameter.detach().cpu().contiguous().view(-1), entry.unit)
                for entry in parameters], [
                (entry.name, entry.parameter.detach().cpu().contiguous().view(-1).view(torch.uint8),
                 entry.unit) for entry in frozen])
        self._memory = [self._map(index) for index in range(len(self.entries))]
        self._addresses = [memory.data_ptr() for memory in self._memory]
        self._versions = [0] * len(self.entries)
        self._most = options.gradients_per_step
        self._received = [0] * self._trained  # gradients of the step that is under way
        self._any_received = False
        for index in range(len(self.entries)):
            self._point(index)
        native.release_freed_memory()  # of the tensors that the parameters were

    def _view(self, index: int, values: Any) -> torch.Tensor:
        parameter = self._parameters[index]
        return torch.from_dlpack(values).view(parameter.dtype).view(parameter.shape)

    def _map(self, index: int) -> torch.Tensor:
        """The trainer's values of a parameter, in its shape and without a copy."""
        frozen = index - self._trained
        return self._view(index, self.trainer.values(index) if frozen < 0
                          else self.trainer.frozen_values(frozen))

    def device_view(self, index: int) -> torch.Tensor:
        """The same where a streamed parameter is while its unit is entered."""
        frozen = index - self._trained
        return self._view(index, self.trainer.device_values(index) if frozen < 0
                          else self.trainer.device_frozen(frozen))

    def swap(self, index: int, memory: torch.Tensor) -> torch.Tensor:
        """Makes `data` of a parameter refer to `memory`; returns what it referred to."""
        before, self._memory[index] = self._memory[index], memory
        self._addresses[index] = memory.data_ptr()
        self._point(index)
        return before

    def _point(self, index: int) -> None:
        parameter = self._parameters[index]
        parameter.data = self._memory[index]
        self._versions[index] = parameter._version

    def leave(self, unit: int) -> None:
        """Ends the pass of a unit, whose memory is another unit's once torch has read it."""
        self.trainer.leave(unit, self._device.stream())

    def add_gradient(self, index: int) -> None:
        """Hands the gradient of a parameter over, if there is one, and frees it."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.layout != torch.strided:
            raise NotSupportedError(f"the gradient of {self.entries[index].name} is sparse; use "
                                    "sparse=False in the layer that has it")
        if not self._any_received:
            self.take_writes()
            self._any_received = True
        if self._received[index] == self._most > 0:
            raise InvalidArgumentError(
                f"{self.entries[index].name} has had the {self._most} gradient(s) of this step: "
                "call step() or zero_grad() before the next backward pass, or make the optimizer "
                "with accumulation_steps=N to add up those of N passes")
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        self._device.add_gradient(self.trainer, index, gradient)
        self._received[index] += 1
        parameter.grad = None

    def add_gradients(self) -> None:
        """Does that for gradients that no backward pass handed over."""
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None and index < self._trained:
                self.add_gradient(index)

    def step(self, divisor: float, max_norm: float) -> tuple[float, bool]:
        """Updates; returns the norm of the gradients and whether the update was skipped."""
        _, norm, skipped = self.trainer.step(divisor, max_norm, self._device.stream())
        self._forget()
        return norm, skipped

    def discard_gradients(self) -> None:
        """Forgets the gradients of the step that is under way."""
        if self._any_received:
            self.trainer.discard_gradients()
            self._forget()

    def _forget(self) -> None:
        self._device.release(self.trainer)
        self._received = [0] * self._trained
        self._any_received = False

    def _written(self, index: int) -> bool:
        parameter = self._parameters[index]
        return (parameter._version != self._versions[index]
                or parameter.data_ptr() != self._addresses[index])

    def take_writes(self) -> None:
        """Notices what the program has written into parameters: load_state_dict, an operation in
        place, or another tensor as `data`."""
        # Nothing is written in most steps, and these lists show that with few calls.
        if (list(map(_version_of, self._parameters)) == self._versions
                and list(map(torch.Tensor.data_ptr, self._parameters)) == self._addresses):
            return
        for index, entry in enumerate(self.entries):
            if not self._written(index):
                continue
            if self._any_received:
                raise InvalidArgumentError(
                    f"{entry.name} was written between a backward pass and its step(); write "
                    "parameters after step(), or call zero_grad() and run backward again")
            self.take_values(index)

    def take_values(self, index: int) -> None:
        """Makes the master of a parameter what the parameter is."""
        parameter = self._parameters[index]
        if index < self._trained:
            self.trainer.wait(index)
        if parameter.data_ptr() != self._memory[index].data_ptr():
            check_parameter(self.entries[index])
            memory = self._memory[index]
            was, now = ((tensor.dtype, tensor.device, tensor.shape)
                        for tensor in (memory, parameter))
            if was != now:
                raise InvalidArgumentError(
                    f"{self.entries[index].name} was {was[0]} of {tuple(was[2])} on {was[1]} when "
                    f"the optimizer was made, and is {now[0]} of {tuple(now[2])} on {now[1]}: "
                    "convert the model before you make the optimizer")
            memory.copy_(parameter.data)
        self._point(index)
        if index < self._trained:
            self.trainer.take_values(index, self._device.stream())

    def read(self, index: int, master: bool, m: bool, v: bool,
             allocate: Callable[[int], torch.Tensor]) -> list[torch.Tensor | None]:
        """State of a parameter as fp32 tensors of its shape; None for what is not wanted.
        `allocate` returns as many elements as it is told."""
        shape = self.entries[index].parameter.shape
        arrays = [allocate(shape.numel()) if wanted else None for wanted in (master, m, v)]
        self.trainer.read_state(index, *arrays)
        return [None if array is None else array.view(shape) for array in arrays]

    def write(self, index: int, master: torch.Tensor | None, m: torch.Tensor | None,
              v: torch.Tensor | None) -> None:
        """Sets the state of a parameter; without a master it keeps its own, and moments that are
        None become zero."""
        name, shape = self.entries[index].name, self.entries[index].parameter.shape
        if master is None:
            if self._written(index):
                self.take_values(index)
            master = self.read(index, True, False, False, in_memory)[0]
        for what, tensor in (("master", master), ("first moment", m), ("second moment", v)):
            if tensor is not None and tensor.shape != shape:
                raise InvalidArgumentError(
                    f"the {what} of {name} has the shape {tuple(tensor.shape)}; the parameter has "
                    f"{tuple(shape)}: load the state of the same model")
        flat = [None if tensor is None else
                tensor.detach().to("cpu", torch.float32).contiguous().view(-1)
                for tensor in (master, m, v)]
        if self._written(index):
            self.take_values(index)
        self.trainer.write_state(index, *flat)

    def load(self, folder: str) -> None:
        """Takes a checkpoint, which replaces what the program has written."""
        self.take_writes()
        self.trainer.load(folder)
