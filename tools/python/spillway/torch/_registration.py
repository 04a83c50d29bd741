"""How parameters come to trainers: when the optimizer is made, with a new group, and later."""
from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import torch

from spillway._arguments import check_format, trainer_options
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._beside import Beside
from spillway.torch._handed_over import Uses
from spillway.torch._lifetime import hold
from spillway.torch._partition import Partition
from spillway.torch._registered import (
    DTYPES,
    Registered,
    bytes_beside,
    check_memory,
    check_parameter,
    check_unshared,
    may_be_shared,
    memory_beside,
    names_of,
)
from spillway.torch._rounds import Rounds
from spillway.torch._shard import Shard
from spillway.torch._state import WithState
from spillway.torch._streamed_partition import StreamedPartition
from spillway.torch.streaming import Streaming, place_of, streaming_of, unit_of


class WithRegistration(WithState):
    """An optimizer that takes parameters as soon as they need gradients."""

    _rounds: Rounds  #: of ranks
    _uses: Uses
    _beside: Beside
    _waited_for: set[torch.Tensor] | None  #: by forward passes, where updates are deferred
    _ready = False   #: torch has all groups that the optimizer is made with

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, also after steps; they begin with empty state."""
        self._check_registered()
        if isinstance(param_group, dict):  # torch refuses what is none
            self._check_group(param_group)
        with self._all_or_none():
            super().add_param_group(param_group)
            group = len(self.param_groups) - 1
            self._absent += [(group, number)
                             for number in range(len(self.param_groups[group]["params"]))]
            if self._ready:
                self._register()
        self._registered.append(list(self.param_groups[group]["params"]))

    def _register(self) -> None:
        """Moves parameters that need gradients and are not here yet into trainers."""
        new: dict[tuple[torch.dtype, torch.device], list[Registered]] = defaultdict(list)
        still_absent = []
        names: list[list[str]] = []
        come: dict[torch.Tensor, str] = {}
        for group, number in self._absent:
            parameter = self.param_groups[group]["params"][number]
            is_lazy = torch.nn.parameter.is_lazy(parameter)
            if not is_lazy and (parameter in self._places or not parameter.requires_grad
                                or not parameter.numel()):
                still_absent.append((group, number))
                continue
            names = names or names_of(self.param_groups)
            name = names[group][number]
            if is_lazy:
                raise NotSupportedError(
                    f"{name} has no shape yet, as that of a lazy layer: run a forward pass before "
                    "you make the optimizer")
            if (other := come.setdefault(parameter, name)) != name:
                raise InvalidArgumentError(
                    f"{other} and {name} are duplicate parameters, one tensor that torch's "
                    "optimizers would update twice in each step: give each parameter once")
            entry = Registered(parameter, group, name, unit_of(parameter))
            check_parameter(entry)
            if self._ranks is None:  # those of ranks begin with values of the first one anyway
                check_unshared(entry)
            if self._waited_for is not None and entry.unit is None and (
                    parameter not in self._waited_for):
                raise InvalidArgumentError(
                    f"{name} was no parameter of the module `deferred` when the optimizer was made,"
                    " and so no forward pass would wait for its update: give deferred= the module "
                    "that has all parameters, and make a new optimizer when one joins it")
            new[parameter.dtype, place_of(parameter)].append(entry)
        if not new:
            return
        with torch.inference_mode(False):  # else no backward pass could use their memory
            self._take_new(new)
        self._absent = still_absent

    def _take_new(self, new: dict[tuple[torch.dtype, torch.device], list[Registered]]) -> None:
        """Makes trainers for parameters of these types and devices."""
        come = [entry for entries in new.values() for entry in entries]
        if any(may_be_shared(entry.parameter) for entry in come):
            self._beside.check(come, come=True)
        short = self._options["state_format"]
        kinds = {parameter.dtype for parameter in self._places} | {dtype for dtype, _ in new}
        check_format(short, torch.bfloat16 in kinds, "convert the model: model.to(torch.bfloat16)")
        with self._all_or_none():
            hold(self, [entry.parameter for entries in new.values() for entry in entries])
            beside: dict[Any, int] = defaultdict(int)  # bytes outside of blocks, by their streaming
            ordered = sorted(new.items(), key=lambda item: not _is_of_blocks(item[1]))
            for _, entries in ordered[1:]:
                streaming = streaming_of([entry.parameter for entry in entries])
                beside[streaming] += sum(
                    bytes_beside(entry.parameter.numel(), entry.parameter.itemsize)
                    for entry in entries)
            for (_, place), entries in ordered:
                self._add_shard(entries, place, beside)

    def _check_absent(self) -> None:
        """Raises for a gradient of a frozen parameter, which torch's optimizers would take."""
        for group, number in self._absent:
            parameter = self.param_groups[group]["params"][number]
            if parameter.grad is not None and parameter.numel() and parameter not in self._places:
                raise InvalidArgumentError(
                    f"{names_of(self.param_groups)[group][number]} has a gradient, and needs none "
                    "(requires_grad is False), so that it has no state: set requires_grad=True, or "
                    "its grad to None")

    def _add_shard(self, entries: list[Registered], place: torch.device,
                   beside: dict[Any, int]) -> None:
        hyperparameters = {entry.group: self._hyperparameters(entry.group, 0) for entry in entries}
        options = self._trainer_options(entries[0].parameter.dtype)
        streaming = streaming_of([entry.parameter for entry in entries])
        frozen: list[Registered] = []
        if streaming is not None and streaming.is_kept_by(*self._shards):
            _check_beside(entries, streaming)
            streaming = None  # of another element type than blocks: these stay on the device
        if streaming is not None:
            if self._ranks is None:
                options.device_memory = memory_beside(streaming.device_memory,
                                                      beside[streaming])
                options.host_link_gbps = streaming.host_link_gbps
            frozen = streaming.frozen()
            check_memory([*entries, *frozen])
        if self._ranks is None:
            shard = Shard(entries, frozen, hyperparameters, options, place,
                          None if streaming is None else streaming.home)
        elif streaming is None:
            shard = Partition(entries, [], hyperparameters, options, place, self._rounds)
        else:
            streaming.home.check_alone()
            shard = StreamedPartition(entries, frozen, hyperparameters, options, place,
                                      self._rounds, streaming)
        if streaming is not None:
            streaming.attach(shard)
            self._lifetime.streamings.append(streaming)
        shard.watch(self._uses, self._beside)
        self._shards.append(shard)
        for index, entry in enumerate(shard.trained_entries()):
            self._places[entry.parameter] = (shard, index)
            first = self._first_state(self.param_groups[entry.group], entry.parameter.shape)
            if first is not None:
                shard.write(index, None, None, first)
            self._lifetime.hooks.append(shard.hook(index))

    def _trainer_options(self, dtype: torch.dtype) -> Any:
        options = trainer_options(self._options, DTYPES[dtype])
        if self._shards and options.nvme:
            options.nvme = [os.path.join(folder, f"shard{len(self._shards)}")
                            for folder in options.nvme]
        if self._ranks is not None:  # of one machine, perhaps
            options.nvme = [os.path.join(folder, f"rank{self._ranks.rank}")
                            for folder in options.nvme]
        return options


def _is_of_blocks(entries: list[Registered]) -> bool:
    """Whether one of the parameters is streamed."""
    return any(entry.unit is not None for entry in entries)


def _check_beside(entries: list[Registered], streaming: Streaming) -> None:
    """Raises unless parameters of an offloaded model can stay on the device beside those that its
    first trainer has."""
    for entry in entries:
        if entry.unit is not None or streaming.keeps(entry.parameter):
            raise NotSupportedError(
                f"{entry.name} of an offloaded model is trained since the optimizer was made, or "
                "is of a block and of another element type than others that are trained; make the "
                "optimizer again, with parameters of blocks of one element type")
