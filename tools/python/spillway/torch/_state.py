"""State of the offloaded optimizers: torch's layout both ways, and checkpoints of their own."""
from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from spillway._files import MARKS, OURS, written_whole
from spillway._paths import Path, path_of
from spillway.errors import (
    CorruptDataError,
    InvalidArgumentError,
    IoError,
    NotSupportedError,
)
from spillway.torch._groups import MUST_BE_OFF, WithGroups, parameters_of
from spillway.torch._ranks import LOADS, Ranks
from spillway.torch._shard import Shard, in_memory
from spillway.torch._state_elsewhere import StateElsewhere

_LEFT_OUT = "state_left_out"  # in a state_dict of hyperparameters alone


def _in_file(folder: str, elements: int) -> torch.Tensor:
    """Returns fp32 elements in a file that has no name, and that goes with the tensor."""
    size = elements * torch.float32.itemsize
    descriptor, path = tempfile.mkstemp(prefix="state-dict-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, size)  # a mapped page without a block ends the process
        return torch.from_file(path, shared=True, size=elements, dtype=torch.float32,
                               device="cpu")
    except OSError as error:
        raise IoError(f"{folder} has no room for {size} bytes more of a state_dict "
                      f"({error.strerror}): free some, or use save(folder)",
                      error.errno or 0) from error
    except RuntimeError as error:
        raise IoError(f"{folder} takes no file of a state_dict ({error}): see to the disk, or use "
                      "save(folder)", errno.EIO) from error
    finally:
        os.close(descriptor)
        os.unlink(path)


class WithState(WithGroups):
    """An optimizer whose state is that of its shards."""

    state_names: Mapping[str, str] = {}  #: torch's names of the moments
    counts_steps = True                #: torch keeps the number of steps of each parameter
    _ranks: Ranks | None
    _options: dict[str, Any]
    _leaves_state_out = False
    _marker: Any = None                #: of a state_dict without state
    _cut_off = ""  #: the call that has replaced a part of the state and failed

    _shown: MutableMapping[torch.Tensor, Any]  #: what `state` is
    _ready: bool

    @property
    def state(self) -> MutableMapping[torch.Tensor, Any]:
        """The parameters that have state. Their entries are in `state_dict` alone."""
        return self._shown

    @state.setter
    def state(self, state: Any) -> None:
        if self._ready:  # torch sets it before
            raise StateElsewhere.refusal()

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        shard, index = self._places[parameter]
        shard.take_write(index)
        folders = self._options["nvme"]
        allocate = functools.partial(_in_file, folders[0]) if folders else in_memory
        master, m, v = shard.read(index, parameter.dtype != torch.float32, "m" in self.state_names,
                                  "v" in self.state_names, allocate)
        state = {}
        if self.counts_steps:
            state["step"] = torch.tensor(float(shard.updates(index)), device="cpu")
        for moment, tensor in (("m", m), ("v", v)):
            if moment in self.state_names:
                state[self.state_names[moment]] = tensor
        if master is not None:
            state["master"] = master
        return state

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in torch's layout, in fp32; 16-bit parameters also have their `master`.

        With `nvme`, its tensors lie in files of the first of these folders, which go with them:
        they take disk, not memory. Without it they are a second copy of the state in memory; `save`
        makes none. As with torch there is no state before the first update.

        With a `process_group` all ranks call it, and the first has the state of all; that of the
        others is empty.
        """
        self._lifetime.check_open()
        self._end_passes()
        self._check_registered()
        self._check_whole()
        state = defaultdict(dict, {
            parameter: self._state_of(parameter)
            for parameter, (shard, index) in self._places.items()
            if shard.updates(index) > 0 and not self._leaves_state_out})
        if self._ranks is not None and self._ranks.rank > 0:
            state.clear()
        marker = {} if self._marker is None else {"spillway": self._marker}
        if self._leaves_state_out:
            marker[_LEFT_OUT] = True
        elsewhere, self._shown = self._shown, state
        try:
            return {**super().state_dict(), **marker}
        finally:
            self._shown = elsewhere

    def __getstate__(self) -> Any:
        raise NotSupportedError(
            f"a {type(self).__name__} cannot be pickled or copied, for its state is not in Python: "
            "save optimizer.state_dict(), or call optimizer.save(folder), and make the optimizer "
            "again before you load it")

    @contextlib.contextmanager
    def state_left_out(self, marker: Any = None) -> Iterator[None]:
        """Makes `state_dict` hold hyperparameters alone, for a checkpoint beside `save`, and a
        marker that says so."""
        self._leaves_state_out, self._marker = True, marker
        try:
            yield
        finally:
            self._leaves_state_out, self._marker = False, None

    def name_of_state(self, parameter: torch.Tensor) -> str:
        """Returns the name under which `save` writes the state of a parameter."""
        shard, index = self._places[parameter]
        return shard.entries[index].name

    def has_state(self) -> bool:
        """Whether a parameter has been updated, or has loaded state."""
        return any(shard.updates(index) > 0 for shard, index in self._places.values())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a `state_dict` of this class or of torch's optimizer of the same name, one
        parameter after the other: that of `torch.load(file, mmap=True)` is never in memory whole.
        With a `process_group` all ranks are given the whole state, of any number of ranks.

        A parameter without state begins again, as one that has made no step. What is refused has
        changed nothing. After an error of the disk, or a signal, that has cut it off, steps raise
        `CorruptDataError` until a state is loaded.
        """
        self._lifetime.check_open()
        self._end_passes()
        self._check_registered()
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            result = before(self, state_dict)
            state_dict = state_dict if result is None else result
        if self._cut_off not in ("load_state_dict", "load_checkpoint") and (
                _LEFT_OUT not in state_dict):
            self._check_whole()
        states, steps = self._checked(state_dict)
        self._load_groups({**state_dict, "state": {}})
        if _LEFT_OUT not in state_dict:
            with self.replacing("load_state_dict"):
                for parameter, state in states.items():
                    shard, index = self._places[parameter]
                    shard.write(index, *self._tensors_of(state))
                    shard.set_updates(index, steps[parameter])
                for shard in self._shards:
                    shard.publish()
            self._state_replaced(by_folder=False)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load_groups(self, state_dict: dict[str, Any]) -> None:
        """Makes torch load groups that were checked, without hooks: those before have run, and
        those after see the state too."""
        names = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
        hooks = [getattr(self, name) for name in names]
        try:
            for name in names:
                setattr(self, name, OrderedDict())
            super().load_state_dict(state_dict)
            self._set_groups()
        finally:
            for name, each in zip(names, hooks, strict=True):
                setattr(self, name, each)

    def _state_replaced(self, by_folder: bool) -> None:
        """Notes that the whole state is another one, by a folder or by a state_dict."""

    @contextlib.contextmanager
    def replacing(self, call: str) -> Iterator[None]:
        """Surrounds what replaces state in parts: before its end, `call` was cut off."""
        self._cut_off = call
        yield
        self._cut_off = ""

    def _check_whole(self) -> None:
        """Raises if a call has replaced a part of the state and not all of it."""
        if self._cut_off:
            remedy = ("make the optimizer again, and load a checkpoint" if self._cut_off == "step"
                      else "call it again, or load(folder)")
            raise CorruptDataError("the state is new in a part alone, since "
                                   f"{self._cut_off}() was cut off: {remedy}")

    def _tensors_of(self, state: Mapping[str, Any]) -> list[torch.Tensor | None]:
        """Returns master and moments of a parameter's state; None for what it has not."""
        return [state.get(name) for name in (
            "master", self.state_names.get("m", ""), self.state_names.get("v", ""))]

    def _checked(self, state_dict: Mapping[str, Any]) -> tuple[
            dict[torch.Tensor, Mapping[str, Any]], dict[torch.Tensor, int]]:
        """Returns the state, and the number of steps, of each parameter whose state is to
        be set. Raises for a state that cannot be loaded, and has changed nothing then."""
        self._check_saved_groups(state_dict["param_groups"])
        # A state has numbers of its own, which need not be places.
        numbered = dict(zip(parameters_of(state_dict["param_groups"]),
                            parameters_of(self.param_groups), strict=True))
        states, steps = {}, {}
        for number, state in state_dict["state"].items():
            if number not in numbered:
                raise InvalidArgumentError(
                    f"there is state for parameter {number!r}, which no group of the state has: "
                    "the keys of its \"state\" are the numbers in \"params\" of its groups")
            if (parameter := numbered[number]) not in self._places:
                raise InvalidArgumentError(
                    f"there is state for parameter {number}, which needs no gradient here: set "
                    "requires_grad before you make the optimizer")
            lacks = [name for name in self.state_names.values() if name not in state]
            if lacks and (state and self.counts_steps):
                raise InvalidArgumentError(
                    f"the state of parameter {number} has {sorted(state)} and no {lacks[0]}: it is "
                    f"that of another optimizer than {type(self).__name__}")
            states[parameter] = state
            tensors = self._tensors_of(state)
            shard, index = self._places[parameter]
            shard.check_state(index, *tensors)
            is_there = any(tensor is not None for tensor in tensors)
            steps[parameter] = int(state.get("step", is_there))
        if _LEFT_OUT not in state_dict:
            for parameter, (shard, index) in self._places.items():
                if parameter not in states and shard.updates(index) > 0:
                    group = self.param_groups[shard.entries[index].group]
                    first = self._first_state(group, parameter.shape)
                    states[parameter] = {} if first is None else {self.state_names["v"]: first}
                    steps[parameter] = 0
        if self._ranks is not None and len(set(steps.values())) > 1:
            raise NotSupportedError(
                f"parameters of the state have made {sorted(set(steps.values()))} steps, and those "
                "of ranks make equally many: load it without process_group")
        return states, steps

    def _check_saved_groups(self, groups: list[dict[str, Any]]) -> None:
        if any(shard.has_gradients() for shard in self._shards):
            raise InvalidArgumentError("gradients of a step are there already: call step() or "
                                       "zero_grad() before load_state_dict()")
        if [len(group["params"]) for group in groups] != [
                len(group["params"]) for group in self.param_groups]:
            raise InvalidArgumentError("the state has other groups of parameters than the "
                                       "optimizer: make it with the groups of the one that saved")
        for group in groups:
            self._check_group(group, "a group of the state")
            for key in sorted(set(self.defaults) - set(MUST_BE_OFF)):
                if key not in group:
                    raise InvalidArgumentError(
                        f"a group of the state has no {key}: it is that of another optimizer than "
                        f"{type(self).__name__}")

    def save(self, directory: Path) -> None:
        """Writes masters, moments, the number of steps and the settings of groups to a folder, one
        block at a time and with checksums. A checkpoint that is there is replaced once the new one
        is whole, and what else its folder has stays.

        With a `process_group` each rank writes its part into a folder of its own in `directory`,
        which as many ranks can `load`.
        """
        directory = path_of(directory, "directory")
        self._check_registered()
        self._check_whole()
        self._end_passes()
        for shard, index in self._places.values():
            shard.take_write(index)
        if self._ranks is not None:
            directory = os.path.join(directory, f"rank{self._ranks.rank}")
        with written_whole(directory, MARKS, OURS) as new:
            if len(self._shards) > 1:
                os.mkdir(new)
            for folder, shard in self._folders(new):
                shard.trainer.save(folder)
            self._write_groups(new)

    def _together(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._ranks is None else self._ranks.together(LOADS, 0)

    def load(self, directory: Path) -> None:
        """Takes what `save` wrote, for the same parameters; the parameters follow, and groups have
        the settings that were saved, such as `lr`, as after `load_state_dict`. A damaged part
        changes nothing of its parameters. If others were loaded before, or the disk fails, steps
        raise `CorruptDataError` until a load succeeds."""
        directory = path_of(directory, "directory")
        if self._ranks is not None:
            directory = os.path.join(directory, f"rank{self._ranks.rank}")
        else:
            self._check_parts(directory)
        self._end_passes()
        self._check_registered()
        if self._ranks is not None:  # nobody reads what is replaced now
            for shard in self._shards:
                shard.take_writes()
            self._ranks.announce(LOADS, 0).details()
        with self._together():
            groups = self._read_groups(directory)
        if self._ranks is not None:  # parts of others may be new where this one's is refused
            self._cut_off = "load"
        with self._together():
            for folder, shard in self._folders(directory):
                shard.load(folder)
                self._cut_off = "load"
        if self._ranks is not None:
            self._ranks.check_loaded(directory, max(
                (shard.trainer.updates for shard in self._shards), default=0))
        for shard in self._shards:
            shard.publish()
        self._cut_off = ""
        self._take_groups(groups)
        self._state_replaced(by_folder=True)

    def _check_parts(self, directory: str) -> None:
        """Raises unless a checkpoint has as many parts as this optimizer has."""
        parts = 1
        while os.path.exists(os.path.join(directory, f"shard{parts}")):
            parts += 1
        if os.path.isdir(directory) and parts != len(self._shards):
            raise InvalidArgumentError(
                f"{directory} has {parts} part(s), in each of which parameters were registered "
                f"together, and this optimizer has {len(self._shards)}: make it with all groups at "
                "once, or as the one that was saved, or load a state_dict()")

    def _folders(self, directory: str) -> list[tuple[str, Shard]]:
        if len(self._shards) == 1:
            return [(directory, self._shards[0])]
        return [(os.path.join(directory, f"shard{number}"), shard)
                for number, shard in enumerate(self._shards)]
