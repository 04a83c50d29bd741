"""State of the offloaded optimizers: torch's layout both ways, and checkpoints of their own."""
from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spillway._files import MARKS, OURS, written_whole
from spillway._paths import Path, path_of
from spillway.errors import InvalidArgumentError, IoError, NotSupportedError
from spillway.torch._lifetime import WithLifetime
from spillway.torch._partition import Partition
from spillway.torch._ranks import Ranks
from spillway.torch._shard import Shard, in_memory


def _in_file(folder: str, elements: int) -> torch.Tensor:
    """Returns fp32 elements in a file that has no name, and that goes with the tensor."""
    size = elements * torch.float32.itemsize
    descriptor, path = tempfile.mkstemp(prefix="state-dict-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, size)  # a mapped page without a block ends the process
        return torch.from_file(path, shared=True, size=elements, dtype=torch.float32)
    except OSError as error:
        raise IoError(f"{folder} has no room for {size} bytes more of a state_dict "
                      f"({error.strerror}): free some, or use save(folder)",
                      error.errno or 0) from error
    finally:
        os.close(descriptor)
        os.unlink(path)


class WithState(WithLifetime):
    """An optimizer whose state is that of its shards."""

    state_names: Mapping[str, str] = {}  #: torch's names of the moments
    counts_steps = True                #: torch keeps the number of steps of each parameter
    refused: tuple[str, ...] = ()      #: keys of torch's groups that must be off
    _ranks: Ranks | None
    _options: dict[str, Any]
    _leaves_state_out = False
    _marker: Any = None                #: of a state_dict without state

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        shard, index = self._places[parameter]
        folders = self._options["nvme"]
        allocate = functools.partial(_in_file, folders[0]) if folders else in_memory
        master, m, v = shard.read(index, parameter.dtype != torch.float32, "m" in self.state_names,
                                  "v" in self.state_names, allocate)
        state = {}
        if self.counts_steps:
            state["step"] = torch.tensor(float(shard.updates(index)))
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
        self.state = defaultdict(dict, {
            parameter: self._state_of(parameter)
            for parameter, (shard, index) in self._places.items()
            if shard.updates(index) > 0 and not self._leaves_state_out})
        if self._ranks is not None and self._ranks.rank > 0:
            self.state.clear()
        marker = {} if self._marker is None else {"spillway": self._marker}
        try:
            return {**super().state_dict(), **marker}
        finally:
            self.state = defaultdict(dict)

    @contextlib.contextmanager
    def state_left_out(self, marker: Any = None) -> Iterator[None]:
        """Makes `state_dict` hold hyperparameters alone, for a checkpoint beside `save`, and a
        marker that says so."""
        self._leaves_state_out, self._marker = True, marker
        try:
            yield
        finally:
            self._leaves_state_out, self._marker = False, None

    def has_state(self) -> bool:
        """Whether a parameter has been updated, or has loaded state."""
        return any(shard.updates(index) > 0 for shard, index in self._places.values())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a `state_dict` of this class or of torch's optimizer of the same name, one
        parameter after the other: that of `torch.load(file, mmap=True)` is never in memory whole.
        With a `process_group` all ranks are given the whole state, of any number of ranks.
        """
        numbered = [parameter for group in self.param_groups for parameter in group["params"]]
        self._lifetime.check_open()
        for group in state_dict["param_groups"]:
            for key in self.refused:
                if group.get(key):
                    raise NotSupportedError(f"the state is of an optimizer with {key}="
                                            f"{group[key]}, which is not supported")
        super().load_state_dict({**state_dict, "state": {}})
        for number, state in state_dict["state"].items():
            if numbered[number] not in self._places:
                raise InvalidArgumentError(
                    f"there is state for parameter {number}, which needs no gradient here: set "
                    "requires_grad before you make the optimizer")
            shard, index = self._places[numbered[number]]
            moments = {moment: state.get(name) for moment, name in self.state_names.items()}
            shard.write(index, state.get("master"), moments.get("m"), moments.get("v"))
            if "step" in state:
                shard.set_updates(index, int(state["step"]))
        for shard in self._shards:
            shard.publish()

    def save(self, directory: Path) -> None:
        """Writes masters, moments and the number of steps to a folder, one block at a time and with
        checksums. Groups' hyperparameters are in `state_dict()["param_groups"]`. A checkpoint that
        is there is replaced once the new one is whole, and what else its folder has stays.

        With a `process_group` each rank writes its part into a folder of its own in `directory`,
        which as many ranks can `load`.
        """
        directory = path_of(directory, "directory")
        if self._ranks is not None:
            directory = os.path.join(directory, f"rank{self._ranks.rank}")
        with written_whole(directory, MARKS, OURS) as new:
            if len(self._shards) > 1:
                os.mkdir(new)
            for folder, shard in self._folders(new):
                shard.trainer.save(folder)

    def load(self, directory: Path) -> None:
        """Takes what `save` wrote, for the same parameters; the parameters follow."""
        directory = path_of(directory, "directory")
        if self._ranks is not None:
            directory = os.path.join(directory, f"rank{self._ranks.rank}")
        for folder, shard in self._folders(directory):
            shard.load(folder)

    def _folders(self, directory: str) -> list[tuple[str, Shard]]:
        if len(self._shards) == 1:
            return [(directory, self._shards[0])]
        return [(os.path.join(directory, f"shard{number}"), shard)
                for number, shard in enumerate(self._shards)]
