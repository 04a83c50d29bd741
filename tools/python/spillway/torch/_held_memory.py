"""Parameters in memory that an optimizer owns, and what the program writes there."""
from __future__ import annotations

import operator

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._beside import Beside
from spillway.torch._registered import (
    Registered,
    check_frozen,
    check_memory,
    check_parameter,
    may_be_shared,
    references_of,
)
from spillway.torch._taken_data import data_of, fingerprint, unwatch, watch

_version_of = operator.attrgetter("_version")


class HeldMemory:
    """Holds parameters in memory that is ours, the first `trained` of which are trained.

    A class that is made of it says where values go that the program writes (`_take_values`), and
    which writes its updates do not see (`_hides_writes`).
    """

    _defers = False  # updates run while the program goes on

    def __init__(self, entries: list[Registered], trained: int) -> None:
        self.entries = entries
        self._parameters = [entry.parameter for entry in entries]
        self._trained = trained
        self._versions = [0] * len(entries)
        self.writes: list[int] = [0] * len(entries)  # of the program that were noticed
        self._untaken: set[int] = set()   # that were written, and whose masters do not follow yet
        self._passes_are_old = False      # values were written since a pass was told of it
        # Fingerprints of what the program has taken as `data`, by parameter and address.
        self._taken: dict[tuple[int, int], torch.Tensor] = {}
        self._beside: Beside | None = None

    def trained_entries(self) -> list[Registered]:
        """Returns those that get gradients."""
        return self.entries[:self._trained]

    def names(self) -> list[str]:
        """Returns their names."""
        return [entry.name for entry in self.trained_entries()]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns all parameters."""
        return self._parameters

    def _hold(self, memory: list[torch.Tensor]) -> None:
        """Makes `data` of each parameter refer to its memory, which has its values."""
        self._memory = memory
        self._addresses = [each.data_ptr() for each in memory]
        for index in range(len(memory)):
            self._point(index)
        self._references = [references_of(each) for each in memory]
        native.release_freed_memory()  # of the tensors that the parameters were

    def finish(self) -> None:
        """Applies updates that are decided."""

    def release(self) -> None:
        """Lets go of the memory: parameters keep theirs."""
        unwatch(self._parameters)
        self._taken.clear()
        self._memory = []

    def _hides_writes(self, index: int) -> bool:
        """Whether an update does not see what is written through `data` of a parameter."""
        raise NotImplementedError

    def watch_data(self) -> None:
        """Begins to notice what is written there, but for tensors that are no parameters."""
        watch([(index, parameter) for index, parameter in enumerate(self._parameters)
               if isinstance(parameter, torch.nn.Parameter) and self._hides_writes(index)], self)

    def note_taken(self, index: int) -> None:
        """Notes that the program has `data` of a parameter, and may write it."""
        place = index, self._addresses[index]
        if place not in self._taken and not self.is_written(index):
            self._taken[place] = fingerprint(self._memory[index])

    def notice_taken(self, index: int) -> None:
        """Notices what was written through `data` of a parameter where it is now."""
        place = index, self._addresses[index]
        if (before := self._taken.pop(place, None)) is None or self.is_written(index):
            return
        now = fingerprint(self._memory[index])
        if not torch.equal(before, now):
            self._note(index)
        if self._is_kept(index):
            self._taken[place] = now

    def _is_kept(self, index: int) -> bool:
        """Whether the program has a tensor in the memory of a parameter."""
        return references_of(self._memory[index]) > self._references[index]

    def _note_new_values(self) -> None:
        """Notes that an update has written parameters."""
        kept = set() if self._defers else {index for index, _ in self._taken
                                           if self._is_kept(index)}
        self._taken = {(index, self._addresses[index]): fingerprint(self._memory[index])
                       for index in kept}

    def _take_values(self, index: int, changed: bool) -> None:
        """Makes the master of a parameter what the parameter is, or with `changed` only where it
        does not round to that."""
        raise NotImplementedError

    def take_values(self, index: int) -> None:
        """Makes the master of a parameter what the parameter is."""
        self._check_written([index])
        self._take_back(index)
        self._note(index)
        self._take_values(index, changed=False)
        self._untaken.discard(index)

    def swap(self, index: int, memory: torch.Tensor, writes: int | None = None) -> torch.Tensor:
        """Makes `data` of a parameter refer to `memory`; returns what it referred to. What the
        program has written since there were as many `writes`, or nobody has noticed, goes along."""
        writes = self.writes[index] if writes is None else writes
        self.notice_taken(index)
        if self.is_written(index):
            self._check_written([index])
            self._check_place(index)
            self._note(index)
        if self.writes[index] > writes:
            memory.copy_(data_of(self._parameters[index]))
        before, self._memory[index] = self._memory[index], memory
        self._addresses[index] = memory.data_ptr()
        self._point(index)
        return before

    def _point(self, index: int) -> None:
        parameter = self._parameters[index]
        parameter.data = self._memory[index]
        self._versions[index] = parameter._version

    def is_written(self, index: int) -> bool:
        """Whether the program has written a parameter, and nobody has noticed."""
        parameter = self._parameters[index]
        return (parameter._version != self._versions[index]
                or parameter.data_ptr() != self._addresses[index])

    def _note(self, index: int) -> None:
        self.writes[index] += 1
        self._untaken.add(index)
        self._passes_are_old = True

    def notice_writes(self, unit: int | None = None) -> bool:
        """Notices what the program has written into parameters: load_state_dict, an operation in
        place, or another tensor as `data`; through `data` into those of a unit, or into all. Their
        values are in our memory then, and masters follow with `take_writes`. Returns whether values
        were written since it returned that last."""
        for index, _ in list(self._taken):
            if unit is None or self.entries[index].unit == unit:
                self.notice_taken(index)
        # Nothing is written in most steps, and these lists show that with few calls. They need no
        # update that runs.
        with torch._C.DisableTorchFunctionSubclass():
            any_written = (list(map(_version_of, self._parameters)) != self._versions or list(
                map(torch.Tensor.data_ptr, self._parameters)) != self._addresses)
        if any_written:
            written = [index for index in range(len(self.entries)) if self.is_written(index)]
            self._check_written(written)
            for index in written:
                self._take_back(index)
                self._note(index)
        old, self._passes_are_old = self._passes_are_old, False
        return old

    def take_writes(self) -> bool:
        """Does that, and makes masters follow, before they are used: of elements that do not round
        to what is there, so that values which are changed for a while and changed back lose
        nothing, be it between a backward pass and its step."""
        old = self.notice_writes()
        for index in sorted(self._untaken):
            self.take_write(index)
        return old

    def take_write(self, index: int) -> None:
        """Makes the master of one parameter follow, if the program has written it."""
        self.notice_taken(index)
        if self.is_written(index):
            self._check_written([index])
            self._take_back(index)
            self._note(index)
        if index in self._untaken:
            self._take_values(index, changed=True)
            self._untaken.discard(index)

    def _check_written(self, written: list[int]) -> None:
        """Raises if the program has made a parameter one of another kind, or gave it the memory of
        another one."""
        for index in written:
            self._check_form(index)
        if any(self._parameters[index].data_ptr() != self._addresses[index]
               and may_be_shared(self._parameters[index]) for index in written):
            if self._beside is None:
                check_memory(self.entries)
            else:
                self._beside.check(self.entries, come=False)

    def _check_place(self, index: int) -> None:
        """Raises if the program has moved our memory."""
        name = self.entries[index].name
        if self._memory[index].data_ptr() != self._addresses[index]:
            raise NotSupportedError(
                f"the memory of {name} was moved, as by share_memory(), to where no update would "
                "reach it: make a new optimizer for a copy (copy.deepcopy(model)), and copy its "
                "parameters into the shared model after steps")

    def _check_form(self, index: int) -> None:
        """Raises if the program has made a parameter one of another kind."""
        parameter, memory = self._parameters[index], self._memory[index]
        if parameter.data_ptr() == memory.data_ptr():
            return
        check = check_parameter if index < self._trained else check_frozen
        check(self.entries[index])
        was, now = ((tensor.dtype, tensor.device, tensor.shape) for tensor in (memory, parameter))
        if was != now:
            raise InvalidArgumentError(
                f"{self.entries[index].name} was {was[0]} of {tuple(was[2])} on {was[1]} when "
                f"the optimizer was made, and is {now[0]} of {tuple(now[2])} on {now[1]}: "
                "convert the model before you make the optimizer")

    def _take_back(self, index: int) -> None:
        """Brings what the program has made the parameter into the memory that is ours."""
        self._check_place(index)
        parameter, memory = self._parameters[index], self._memory[index]
        if parameter.data_ptr() != memory.data_ptr():
            self._check_aliases(index)
            memory.copy_(data_of(parameter))
        self._point(index)

    def _check_aliases(self, index: int) -> None:
        """Raises if the program still has the memory that it has replaced, and would find there
        what is copied into it."""
        if references_of(self._memory[index]) >= self._references[index]:
            name = self.entries[index].name
            raise InvalidArgumentError(
                f"another tensor was set as data of {name}, and what was its data is in use still, "
                "as backup = p.data or a graph keeps it, and would become the new values: delete it"
                " first, or keep backup = p.data.clone() and write with p.copy_(values) in "
                "torch.no_grad()")

    def check_state(self, index: int, *state: torch.Tensor | None) -> None:
        """Raises unless a master and two moments have the shape of their parameter."""
        name, shape = self.entries[index].name, self.entries[index].parameter.shape
        for what, tensor in zip(("master", "first moment", "second moment"), state, strict=True):
            if tensor is not None and tensor.shape != shape:
                raise InvalidArgumentError(
                    f"the {what} of {name} has the shape {tuple(tensor.shape)}; the parameter has "
                    f"{tuple(shape)}: load the state of the same model")
