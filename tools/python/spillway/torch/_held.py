"""Parameters that an optimizer holds: their gradients, and what the program writes to them."""
from __future__ import annotations

import operator
import weakref
from typing import Any

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._beside import Beside
from spillway.torch._handed_over import HandedOver, Uses
from spillway.torch._registered import (
    Registered,
    check_memory,
    check_parameter,
    may_be_shared,
    references_of,
)

_version_of = operator.attrgetter("_version")


class Held:
    """Holds parameters in memory that is ours, the first `trained` of which get gradients: as many
    as `most` in a step, 0 for any number.

    A class that is made of it says where gradients go (`_hand_over`) and where values go
    (`_take_values`).
    """

    def __init__(self, entries: list[Registered], trained: int, most: int) -> None:
        self.entries = entries
        self._parameters = [entry.parameter for entry in entries]
        self._trained = trained
        self._most = most
        self._versions = [0] * len(entries)
        self.writes = [0] * len(entries)  # of the program that were noticed
        self._untaken: set[int] = set()   # that were written, and whose masters do not follow yet
        self._passes_are_old = False      # values were written since a pass was told of it
        self._uses: Uses | None = None
        self._beside: Beside | None = None
        self._left: dict[int, HandedOver] = {}  # in `grad` of what handed gradients over
        Held._forget(self)

    def watch(self, uses: Uses, beside: Beside) -> None:
        """Leaves in `grad` what notes there how the program uses gradients that are handed over.
        `beside`: parameters that must have memory of their own."""
        self._uses, self._beside = uses, beside

    def trained_entries(self) -> list[Registered]:
        """Returns those that get gradients."""
        return self.entries[:self._trained]

    def names(self) -> list[str]:
        """Returns their names."""
        return [entry.name for entry in self.trained_entries()]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns all parameters."""
        return self._parameters

    def has_gradients(self) -> bool:
        """Whether gradients of a step were handed over."""
        return self._any_received

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
        self._memory = []

    def _hand_over(self, index: int, gradient: torch.Tensor) -> bool:
        """Takes a gradient, or leaves it where it is; returns whether it took it."""
        raise NotImplementedError

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

    def swap(self, index: int, memory: torch.Tensor) -> torch.Tensor:
        """Makes `data` of a parameter refer to `memory`; returns what it referred to. What the
        program has written since the last swap goes along."""
        if self.is_written(index):
            self._check_written([index])
            self._check_place(index)
            memory.copy_(self._parameters[index].data)
            self._note(index)
        before, self._memory[index] = self._memory[index], memory
        self._addresses[index] = memory.data_ptr()
        self._point(index)
        return before

    def _point(self, index: int) -> None:
        parameter = self._parameters[index]
        parameter.data = self._memory[index]
        self._versions[index] = parameter._version

    def _note_update(self, all_of_them: bool) -> None:
        """Makes torch refuse a backward pass through a graph of before the update, of all that are
        trained or of those with a gradient. The program has not written them."""
        for index in range(self._trained):
            if all_of_them or self._received[index]:
                written = self._parameters[index]._version != self._versions[index]
                torch.autograd.graph.increment_version(self._parameters[index])
                if not written:
                    self._versions[index] += 1

    def hook(self, index: int) -> Any:
        """Makes autograd hand the gradient of a parameter over as soon as it is whole; returns the
        handle that ends that."""
        alive = weakref.ref(self)  # a parameter may outlive its optimizer

        def take(parameter: torch.Tensor) -> None:
            if (held := alive()) is not None:
                held.check_current(index)
                held.add_gradient(index)
            elif isinstance(parameter.grad, HandedOver):
                parameter.grad = parameter.grad.take()

        return self._parameters[index].register_post_accumulate_grad_hook(take)

    def check_current(self, index: int) -> None:
        """Raises if a backward pass is that of values whose update nobody waited for."""

    def add_gradient(self, index: int) -> None:
        """Hands the gradient of a parameter over, if there is one, and frees it."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if isinstance(gradient, HandedOver) and gradient is not self._left.get(index):
            gradient = parameter.grad = self._of_another(index, gradient)
        if gradient is None:
            return
        if (left := self._left.get(index)) is not None:
            came = left.came  # which stays there until it is handed over
            if gradient is left and came is None or gradient is left.home:
                return
            if left.dropped or gradient is not left and gradient is not came:
                self.notice_drops()
            if gradient is left:
                gradient = came
        if gradient.layout != torch.strided:
            raise NotSupportedError(f"the gradient of {self.entries[index].name} is sparse; use "
                                    "sparse=False in the layer that has it")
        if not self._any_received:
            self.take_writes()
            self._any_received = True
        if left is not None and left.factor != 1:
            self.apply_factors()
        if self._received[index] == self._most > 0:
            is_taken = self._accumulate(index, gradient)
        else:
            is_taken = self._hand_over(index, gradient)
            self._received[index] += 1
        if left is not None:
            left.came, left.is_zero = None, False
        if is_taken:
            self._leave(index)

    def _accumulate(self, index: int, gradient: torch.Tensor) -> bool:
        """Adds a gradient beyond those that a step was to have; returns whether it took it."""
        raise InvalidArgumentError(
            f"{self.entries[index].name} has had the {self._most} gradient(s) of this step: "
            "call step() or zero_grad() before the next backward pass, or make the optimizer "
            "with accumulation_steps=N to add up those of N passes")

    def take_home(self) -> None:
        """Takes the values of gradients that the program has in `grad`."""

    def factors(self) -> set[float]:
        """The factors by which the program has multiplied the gradients of the step."""
        return set()

    def apply_factors(self) -> None:
        """Multiplies each gradient by its own factor, before others are added to it."""

    def first_changed(self) -> str | None:
        """The name of a parameter whose gradient the program has multiplied or may have changed, if
        there is one."""
        return next((left.owner for left in self._left.values()
                     if left.factor != 1 or left.home is not None), None)

    def _of_another(self, index: int, gradient: HandedOver) -> torch.Tensor | None:
        """Returns what autograd has added to a gradient that an ended optimizer had. Raises for one
        of another parameter, which has no values to take."""
        if gradient.uses is not self._uses:
            return gradient.take()
        raise NotSupportedError(
            f"the grad of {self.entries[index].name} is that of {gradient.owner}, whose values the "
            "backward pass has handed to the optimizer: compute it with torch.autograd.grad, and "
            "set p.grad to that; zero_grad() forgets this step")

    def _leave(self, index: int) -> None:
        """Frees a gradient that was handed over; something that has its form stays in its place."""
        parameter, left = self._parameters[index], None
        if self._uses is not None:
            left = self._left.get(index)
            if left is None or left.device != parameter.device:
                left = self._left[index] = self._stand_in(index, self._uses)
        parameter.grad = left

    def _stand_in(self, index: int, uses: Uses) -> HandedOver:
        """Returns what stands in `grad` for a gradient that was handed over."""
        return HandedOver(self._parameters[index], self.entries[index].name, uses)

    def notice_drops(self) -> None:
        """Forgets gradients that were handed over and that the program has dropped since: `grad` is
        None, was set to zero, or is another tensor. Those that are zero stay in `grad`."""
        dropped = [index for index, left in self._left.items()
                   if left.dropped or not left.stands_in(self._parameters[index])]
        zeros = {index: left for index, left in self._left.items()
                 if (left.dropped or left.is_zero) and self._parameters[index].grad is left}
        if dropped and all(index in dropped or index in zeros for index in self._left):
            self.discard_gradients()
        else:
            for index in dropped:
                if self._received[index]:
                    self._drop(index)
                    self._received[index] = 0
                self._forget_left(index)
        for index, left in zeros.items():
            left.dropped, left.is_zero = False, True
            self._left[index] = self._parameters[index].grad = left

    def check_replaced(self) -> None:
        """Raises if a gradient was read, which gives zeros, and replaced by what came of it."""
        for index, left in self._left.items():
            gradient = self._parameters[index].grad
            if left.was_read and gradient is not None and gradient is not left:
                left.uses.note_change(left.owner, "grad = another tensor")
                left.uses.check(clips=True)

    def _drop(self, index: int) -> None:
        """Forgets the gradients of one parameter."""
        raise NotImplementedError

    def _forget_left(self, index: int) -> None:
        left, parameter = self._left.pop(index), self._parameters[index]
        left.dropped = left.is_zero = False
        if left.stands_in(parameter):
            parameter.grad = None
        left.expire()

    def add_gradients(self) -> None:
        """Does that for gradients that no backward pass handed over, and those set to zero."""
        for index, parameter in enumerate(self._parameters):
            left = self._left.get(index)
            if left is not None and left.is_zero and parameter.grad is left:
                left.came = torch.zeros_like(parameter)
            if parameter.grad is not None and index < self._trained:
                self.add_gradient(index)

    def is_written(self, index: int) -> bool:
        """Whether the program has written a parameter, and nobody has noticed."""
        parameter = self._parameters[index]
        return (parameter._version != self._versions[index]
                or parameter.data_ptr() != self._addresses[index])

    def _note(self, index: int) -> None:
        self.writes[index] += 1
        self._untaken.add(index)
        self._passes_are_old = True

    def notice_writes(self) -> bool:
        """Notices what the program has written into parameters: load_state_dict, an operation in
        place, or another tensor as `data`. Their values are in our memory then, and masters follow
        with `take_writes`. Returns whether values were written since it returned that last."""
        # Nothing is written in most steps, and these lists show that with few calls.
        if (list(map(_version_of, self._parameters)) != self._versions
                or list(map(torch.Tensor.data_ptr, self._parameters)) != self._addresses):
            written = [index for index in range(len(self.entries)) if self.is_written(index)]
            self._check_written(written)
            for index in written:
                self._take_back(index)
                self._note(index)
        if self._untaken and self._any_received:
            raise InvalidArgumentError(
                f"{self.entries[min(self._untaken)].name} was written between a backward pass and "
                "its step(); write parameters after step(), or call zero_grad() and run backward "
                "again")
        old, self._passes_are_old = self._passes_are_old, False
        return old

    def take_writes(self) -> bool:
        """Does that, and makes masters follow: of elements that do not round to what is there, so
        that values which are changed for a while and changed back lose nothing."""
        old = self.notice_writes()
        for index in sorted(self._untaken):
            self.take_write(index)
        return old

    def take_write(self, index: int) -> None:
        """Makes the master of one parameter follow, if the program has written it."""
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
        check_parameter(self.entries[index])
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
            memory.copy_(parameter.data)
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

    def any_received(self) -> bool:
        """Whether a gradient of the step under way is here."""
        return self._any_received

    def first_without_gradient(self) -> str | None:
        """The name of a parameter that has no gradient in the step under way, if there is one."""
        lacks = (entry.name for entry, count in zip(self.entries, self._received, strict=False)
                 if count == 0)
        return next(lacks, None)

    def _forget(self) -> None:
        self._received = [0] * self._trained
        self._any_received = False
        for index in list(self._left):
            self._forget_left(index)

    def check_state(self, index: int, *state: torch.Tensor | None) -> None:
        """Raises unless a master and two moments have the shape of their parameter."""
        name, shape = self.entries[index].name, self.entries[index].parameter.shape
        for what, tensor in zip(("master", "first moment", "second moment"), state, strict=True):
            if tensor is not None and tensor.shape != shape:
                raise InvalidArgumentError(
                    f"the {what} of {name} has the shape {tuple(tensor.shape)}; the parameter has "
                    f"{tuple(shape)}: load the state of the same model")
