"""Parameters of a model in blocks that pass through a part of the device's memory."""
from __future__ import annotations

import functools
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import saved_tensors_hooks

from spillway._load import native
from spillway._paths import Paths
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._activations import Activations
from spillway.torch._blocks import find_blocks, units_of
from spillway.torch._frozen import FrozenHome
from spillway.torch._quantized import Followers, Quantized
from spillway.torch._registered import (
    Registered,
    check_frozen,
    check_untransformed,
    check_values,
    references_of,
)
from spillway.torch._saved_places import Places
from spillway.torch._shard import Shard
from spillway.torch._uncut import uncut

__all__ = ["offload_model"]


def offload_model(model: torch.nn.Module, device_memory: str | int,
                  blocks: list[torch.nn.Module] | None = None,
                  activation_memory: str | int | None = None,
                  device: str | torch.device = "cpu",
                  activation_window: str | int | None = None,
                  host_link_gbps: float | None = None, frozen: str = "auto",
                  frozen_nvme: Paths = ()) -> torch.nn.Module:
    """Streams the parameters of `model` through `device_memory` bytes, and returns the model.

    Call it before the optimizer is made, which must be one of `spillway.torch`: it keeps the
    parameters. Each block's parameters are on the device during its forward pass and its backward
    pass, those of the next block come meanwhile, and parameters outside of blocks stay there. The
    loop is the same, and so are the bits. `blocks` are modules in the order of their forward pass;
    without it they are the children of the `ModuleList` (or `Sequential`) with most parameters
    whose children are of one class. A parameter that several blocks share stays on the device.

    Parameters that need no gradient, such as the base model of adapters, are frozen: they pass
    through the device too, in whatever element type, and have neither gradients nor state. What is
    trained is of one element type. With `frozen="nvme"` those of blocks live in files in the
    folders `frozen_nvme`, or else in the optimizer's `nvme`, and are read for each pass, ahead of
    it; with "host" in host memory; with "auto" on disk where host memory lacks the room and there
    is a folder. The files go with the optimizer.

    What operations of the model save for backward beside parameters stays on the device, or, with
    `activation_memory`, waits in as many bytes of host memory. `activation_window` bytes of it may
    be on their way in each direction, beside the passes, and take as much memory of the device; by
    default it is the most that one block saves.

    With a `process_group` of the optimizer, the ranks of a machine stream from one copy of the
    parameters, and all of them have the values of the first rank.

    `device` is the GPU that computes, such as "cuda" or "cuda:1". The model is given on the CPU.
    Its buffers move to the GPU now and what stays there when the optimizer is made; parameters of
    blocks are CPU tensors wherever no pass of their block needs them. Inputs are CUDA tensors. A
    block computes on one stream, that of its inputs and outputs. On the CPU, the device is a part
    of host memory with a budget, and with `host_link_gbps` copies to and from it take as long as
    over a link of that many GB/s.

    A block that returns or keeps a tensor in the memory of its parameters, such as a view, raises
    NotSupportedError once its pass is over.
    """
    if hasattr(model, "_spillway_streaming"):
        raise InvalidArgumentError("the model is offloaded already")
    check_values(model)
    found = find_blocks(model) if blocks is None else list(blocks)
    device = _checked(device)
    if host_link_gbps is not None:
        _check_link(host_link_gbps, device)
    activations = _activations(activation_memory, activation_window, host_link_gbps)
    home = FrozenHome(frozen, frozen_nvme)
    streaming = Streaming(model, device_memory, found, activations, device, host_link_gbps, home)
    model._spillway_streaming = streaming
    if activations is not None:
        activations.watch(model)
    streaming.move_buffers(device)
    return model


def _check_link(gigabytes_per_second: float, device: torch.device) -> None:
    if device.type != "cpu":
        raise InvalidArgumentError(f"host_link_gbps is {gigabytes_per_second}, and device is "
                                   f"{device}: it is for rehearsals on the CPU; leave it out")
    if not 0 < gigabytes_per_second < math.inf:
        raise InvalidArgumentError(f"host_link_gbps is {gigabytes_per_second}; it is above 0")


def _activations(memory: str | int | None, window: str | int | None,
                 host_link_gbps: float | None) -> Activations | None:
    if memory is None:
        if window is not None:
            raise InvalidArgumentError(f"activation_window is {window}, and there is no "
                                       "activation_memory: give both, or leave it out")
        return None
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        raise NotSupportedError(
            f"activation_memory needs PyTorch 2.8, and this is {torch.__version__}: leave it out, "
            "and recompute blocks (torch.utils.checkpoint)")
    return Activations(native.parse_bytes(str(memory)),
                       None if window is None else native.parse_bytes(str(window)),
                       host_link_gbps)


def _checked(device: str | torch.device) -> torch.device:
    """Returns the device, a GPU with its number."""
    device = torch.device(device)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise NotSupportedError(f"device is {device}: there are cpu, and cuda for NVIDIA's GPUs")
    if not torch.cuda.is_available():
        raise NotSupportedError(
            f"device is {device}, and torch finds no GPU: {torch.__version__} may be a build "
            "without CUDA, or there is no driver; leave device out to rehearse on the CPU")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None
                        else device.index)


def _top_hooks() -> tuple[Any, Any]:
    """What handles saved tensors so far: that of torch.utils.checkpoint, of a program, or ours.
    PyTorch says so since 2.8; before, ours alone handle those of blocks."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)(False)
    return (None, None) if top is None else top


class Streaming:
    """Enters and leaves the units of one model, which are its blocks."""

    def __init__(self, model: torch.nn.Module, device_memory: str | int,
                 blocks: list[torch.nn.Module], activations: Activations | None,
                 device: torch.device, host_link_gbps: float | None, home: FrozenHome) -> None:
        self.home: FrozenHome = home  #: of what is frozen
        self.device_memory: str = str(device_memory)
        self.device = device
        self.host_link_gbps: float | None = host_link_gbps
        self.activations: Activations | None = activations
        self._model = weakref.ref(model)
        self._quantized = Quantized(model, blocks)
        self._quantized.check_blocks()
        self._quantized.own()
        parts = self._quantized.parts
        self._names: dict[torch.Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
            if not self._quantized.wraps(parameter)} | {part.tensor: part.name for part in parts}
        self._parameters: list[list[torch.Tensor]] = [[] for _ in blocks]
        units = units_of(model, blocks, self._quantized.units())
        for tensor, unit in (*units.items(), *((part.tensor, part.unit) for part in parts)):
            tensor._spillway_streaming = (self, unit)
            if unit is not None and not self._quantized.wraps(tensor):
                self._parameters[unit].append(tensor)
        self._followers = [Followers(self._quantized, unit, self._parameters[unit])
                           for unit in range(len(blocks))]
        self._quantized_units = self._quantized.quantized_units()
        self._places = Places(self)
        self._shard: Shard | None = None
        self.until_trained: Any = None  # keeps the parameters until an optimizer trains them
        self._indices: list[list[int]] = []
        # Where those of the entered unit lie otherwise, and the writes that it was entered after.
        self._kept: list[tuple[torch.Tensor, int]] = []
        self._uses: list[int] = []  # of their memory on the device before the pass
        self._inside: int | None = None
        self._backward: int | None = None  # the backward pass at whose end the unit is left
        # Compiled, it would find transforms of the compiler, whose import is long.
        self._check_untransformed = torch.compiler.disable(check_untransformed)
        for unit, block in enumerate(blocks):
            block.forward = self._streamed(unit, block.forward)

    def __getstate__(self) -> Any:
        raise NotSupportedError(
            "an offloaded model cannot be pickled or copied, for an optimizer keeps its parameters:"
            " make another model of its class and load this one's state_dict()")

    def move_buffers(self, device: torch.device) -> None:
        """Moves to `device` what no trainer keeps: buffers, and parameters without elements."""
        if (model := self._model()) is None:
            return
        empty = (parameter for parameter in model.parameters() if not parameter.numel())
        for tensor in (*model.buffers(), *empty):
            if not self._quantized.has(tensor):
                tensor.data = tensor.data.to(device)

    def settle(self) -> None:
        """Waits for saved activations that are on their way to the host or back."""
        if self.activations is not None:
            self.activations.settle()

    def frozen(self) -> list[Registered]:
        """What nobody trains of the model, which goes where the parameters go."""
        found = [Registered(parameter, 0, name, unit_of(parameter))
                 for parameter, name in self._names.items()
                 if not parameter.requires_grad and parameter.numel()]
        for entry in found:
            check_frozen(entry)
        return found

    def units(self) -> int:
        """The number of units."""
        return len(self._parameters)

    def is_kept_by(self, *shards: Any) -> bool:
        """Whether one of `shards` keeps the model's parameters."""
        return any(self._shard is shard for shard in shards)

    def keeps(self, parameter: torch.Tensor) -> bool:
        """Whether what keeps the model's parameters has this one, frozen or not."""
        return any(entry.parameter is parameter for entry in self._shard.entries)

    def has_keeper(self) -> bool:
        """Whether an optimizer keeps the model's parameters, so that passes can run."""
        return self._shard is not None

    def attach(self, shard: Shard) -> None:
        """Makes `shard`, which has all parameters of the model, the keeper of them."""
        places = {entry.parameter: index for index, entry in enumerate(shard.entries)}
        for unit, parameters in enumerate(self._parameters):
            for parameter in parameters:
                if parameter.numel() and parameter not in places:
                    raise NotSupportedError(
                        f"{self._names[parameter]} of block {unit} needs gradients and is not one "
                        "of the optimizer with its element type: give the optimizer all parameters "
                        "that are trained, in one element type, or freeze it")
        if self.until_trained is not None:
            self.until_trained.close()
            self.until_trained = None
        self._parameters = [[parameter for parameter in parameters if parameter.numel()]
                            for parameters in self._parameters]
        self._indices = [[places[parameter] for parameter in parameters]
                         for parameters in self._parameters]
        for followers in self._followers:
            followers.leave()
        self._shard = shard

    def detach(self) -> None:
        """Ends the pass under way; the optimizer ends that keeps the parameters."""
        try:
            self.leave()
        finally:
            self._shard = self._inside = None
            self._indices, self._kept, self._uses = [], [], []

    def _streamed(self, unit: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the forward of a block with its parameters on the device."""

        @functools.wraps(forward)
        def streamed(*args: Any, **kwargs: Any) -> Any:
            recomputes, is_whole = torch._C._current_graph_task_id() != -1, False
            try:
                if self._inside != unit:
                    self._enter(unit, backward=recomputes)
                pack, unpack = _top_hooks()
                with saved_tensors_hooks(lambda tensor: self._places.pack(tensor, (pack, unpack)),
                                         self._places.unpack):
                    result = forward(*args, **kwargs)
                if unit in self._quantized_units:
                    self._places.note_functions(unit, result, (args, kwargs))
                is_whole = True
                return result
            finally:
                if not recomputes:
                    self.leave(is_whole)

        return streamed

    def _enter(self, unit: int, backward: bool) -> None:
        if self._shard is None:
            raise InvalidArgumentError(
                "the model is offloaded and nobody keeps its parameters; make an optimizer of "
                "spillway.torch with model.parameters() first")
        self._check_untransformed(unit)
        self.leave(backward and self._backward == torch._C._current_graph_task_id())
        # Each backward pass has a number of its own. One that raises never calls back.
        if backward and self._backward != (number := torch._C._current_graph_task_id()):
            Variable._execution_engine.queue_callback(functools.partial(self.leave, True))
            self._backward = number
        self._shard.notice_drops()
        if backward:
            self._shard.settle_clip()
        self._shard.apply_factors()  # no gradient can be read while a unit is entered
        self._shard.reopen()
        if self._shard.notice_writes(unit):
            self._shard.forget_uploads()
        with uncut():
            self._shard.enter(unit, backward)
            if not backward:
                self._shard.end_updates(self._indices[unit])
            self._inside = unit
            if self.activations is not None and not backward:
                self.activations.begin_block()
            self._uses = []
            for index in self._indices[unit]:
                memory = self._shard.device_view(index)
                self._uses.append(references_of(memory))
                self._kept.append((self._shard.swap(index, memory), self._shard.writes[index]))
            self._followers[unit].enter()

    def leave(self, is_whole: bool = False) -> None:
        """Ends the pass of the unit that was entered last, if it has not ended. Raises if one that
        is whole, and was not cut off, leaves tensors behind that share the unit's memory."""
        if self._inside is None:
            return
        memory: list[torch.Tensor] = []  # on the device, the last parameter's first
        with uncut():
            unit = self._inside
            self._followers[unit].restore()
            while self._kept:
                memory.append(self._shard.swap(self._indices[unit][len(self._kept) - 1],
                                               *self._kept[-1]))
                self._kept.pop()
            self._followers[unit].leave()
            self._inside = None
            if self.activations is not None:
                self.activations.end_block()
            self._shard.leave(unit)
        if not is_whole or not self._left_behind(memory):
            return
        gc.collect()  # a cycle of references may have what nobody can use
        if left := self._left_behind(memory):
            raise NotSupportedError(
                f"block {unit} has returned or kept a tensor in the memory that "
                f"{self._names[self._parameters[unit][left[0]]]} has on the device (a view, "
                "p.detach() or p.data), where another block's parameters come next: return or keep "
                "a copy of it (.clone())")

    def _left_behind(self, memory: list[torch.Tensor]) -> list[int]:
        """Returns the places of parameters whose memory on the device somebody else uses too."""
        return [place for place, (each, uses) in enumerate(zip(memory[::-1], self._uses,
                                                               strict=True))
                if references_of(each) > uses]

    # What Places asks.

    def entered(self) -> int | None:
        """Returns the unit whose pass is under way."""
        return self._inside

    def enter_again(self, unit: int) -> None:
        """Enters a unit in a backward pass, if it is not entered."""
        if self._inside != unit:
            self._enter(unit, backward=True)

    def tensors_of(self, unit: int) -> list[torch.Tensor]:
        """Returns the streamed tensors of a unit."""
        return self._parameters[unit]

    def name_of(self, unit: int, place: int) -> str:
        """Returns the name of one."""
        return self._names[self._parameters[unit][place]]

    def changes_of(self, unit: int, place: int) -> tuple[int, int]:
        """Counts the changes of a parameter: writes that the program has made, and updates."""
        shard, index = self._shard, self._indices[unit][place]
        shard.notice_taken(index)
        updates = shard.trainer.updates if shard.entries[index].parameter.requires_grad else 0
        return shard.writes[index] + shard.is_written(index), updates


def is_streamed(parameter: torch.Tensor) -> bool:
    """Whether a parameter is one of an offloaded model."""
    return hasattr(parameter, "_spillway_streaming")


def unit_of(parameter: torch.nn.Parameter) -> int | None:
    """Returns the unit of a streamed parameter, or None for one that stays."""
    return getattr(parameter, "_spillway_streaming", (None, None))[1]


def place_of(parameter: torch.nn.Parameter) -> torch.device:
    """Returns the device on which passes read a parameter."""
    streaming = getattr(parameter, "_spillway_streaming", (None, None))[0]
    return parameter.device if streaming is None else streaming.device


def streaming_of(parameters: list[torch.nn.Parameter]) -> Streaming | None:
    """Returns what streams the parameters. Raises if something streams only some of them."""
    found = {id(s): s for s in (getattr(parameter, "_spillway_streaming", (None, None))[0]
                                for parameter in parameters)}
    if len(found) > 1:
        raise NotSupportedError(
            "an optimizer has parameters of an offloaded model and others of the same element "
            "type; make one optimizer for each")
    return next(iter(found.values()), None)
