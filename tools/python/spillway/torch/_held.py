"""Parameters that an optimizer holds, and their gradients."""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._beside import Beside
from spillway.torch._gradient_handle import GradientHandle
from spillway.torch._handed_over import Uses
from spillway.torch._held_memory import HeldMemory
from spillway.torch._registered import Registered


class Held(HeldMemory):
    """Holds parameters, the first `trained` of which get gradients: as many as `most` in a step, 0
    for any number.

    A class that is made of it says where gradients go (`_hand_over`).
    """

    _keeps_last = True  # the gradients of the last step

    def __init__(self, entries: list[Registered], trained: int, most: int) -> None:
        super().__init__(entries, trained)
        self._most = most
        self._uses: Uses | None = None
        self._one_pass = threading.RLock()  # of a gradient that is taken
        self._left: dict[int, GradientHandle] = {}  # in `grad` of what handed gradients over
        self._leaves = [0]  # of the norm: where those of a parameter begin
        for entry in entries[:trained]:
            leaves = -(-entry.parameter.numel() // native.leaf_parameters)
            self._leaves.append(self._leaves[-1] + leaves)
        Held._forget(self)

    def watch(self, uses: Uses, beside: Beside) -> None:
        """Leaves in `grad` what notes there how the program uses gradients that are handed over.
        `beside`: parameters that must have memory of their own."""
        self._uses, self._beside = uses, beside
        self.watch_data()

    def has_gradients(self) -> bool:
        """Whether gradients of a step were handed over."""
        return self._any_received

    def _hand_over(self, index: int, gradient: torch.Tensor) -> bool:
        """Takes a gradient, or leaves it where it is; returns whether it took it."""
        raise NotImplementedError

    def release(self) -> None:
        """Lets go of the memory, and of gradients: parameters keep theirs."""
        super().release()
        for left in self._left.values():
            left.expire()

    def _note_update(self, all_of_them: bool) -> None:
        """Makes torch refuse a backward pass through a graph of before the update, of all that are
        trained or of those with a gradient. The program has not written them."""
        for index in range(self._trained):
            if all_of_them or self._received[index]:
                written = self._parameters[index]._version != self._versions[index]
                torch.autograd.graph.increment_version(self._parameters[index])
                if not written:
                    self._versions[index] += 1
        self._note_new_values()

    def hook(self, index: int) -> Any:
        """Makes autograd hand the gradient of a parameter over as soon as it is whole; returns the
        handle that ends that."""
        alive = weakref.ref(self)  # a parameter may outlive its optimizer

        @torch._disable_dynamo
        def take(parameter: torch.Tensor) -> None:
            if (held := alive()) is not None:
                held._take(index)
            elif isinstance(parameter.grad, GradientHandle):
                parameter.grad = parameter.grad.take()

        return self._parameters[index].register_post_accumulate_grad_hook(take)

    def _take(self, index: int) -> None:
        """Takes what a backward pass has added to a gradient."""
        is_alone = self._one_pass.acquire(blocking=False)
        try:
            left, gradient = self._left.get(index), self._parameters[index].grad
            if not is_alone or (left is not None and gradient is left and left.came is None
                                and left.home is None):
                self._torn = index
            self._check_torn()
            if left is not None:
                left.is_own = True
            self.check_current(index)
            self.add_gradient(index)
        finally:
            if is_alone:
                self._one_pass.release()

    def _check_torn(self) -> None:
        """Raises if backward passes of two threads have met."""
        if self._torn is not None:
            raise NotSupportedError(
                f"two threads have run backward passes through {self.entries[self._torn].name} at "
                "once, and a gradient may be lost: run them one after another; zero_grad() "
                "forgets this step")

    def is_deciding(self, index: int) -> bool:
        """Whether the update of a parameter may be under way."""
        raise NotImplementedError

    def check_current(self, index: int) -> None:
        """Raises if a backward pass is that of values whose update nobody waited for."""
        if self.is_deciding(index) and self.entries[index].unit is None:
            raise InvalidArgumentError(
                f"{self.entries[index].name} was used, by what torch does not make wait, while its "
                "deferred update may have been under way: call optimizer.synchronize() before; "
                "zero_grad() forgets this step")

    def _note_applied(self, indices: Iterable[int]) -> None:
        """Notes that deferred updates are over. Raises if one has overwritten what the program
        wrote."""
        for index in indices:
            parameter, memory = self._parameters[index], self._memory[index]
            if self.is_written(index) and parameter.data_ptr() == memory.data_ptr():
                raise InvalidArgumentError(
                    f"{self.entries[index].name} was written while its deferred update was under "
                    "way, which has overwritten it: call optimizer.synchronize() first, then write")
            if self.entries[index].unit is None and not self.is_written(index):
                # So that torch refuses a backward pass of what was read before.
                torch.autograd.graph.increment_version(parameter)
                self._versions[index] += 1

    def add_gradient(self, index: int) -> None:
        """Hands the gradient of a parameter over, if there is one, and frees it."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if isinstance(gradient, GradientHandle) and gradient is not self._left.get(index):
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
        self.settle_clip()
        if gradient.layout != torch.strided:
            raise NotSupportedError(f"the gradient of {self.entries[index].name} is sparse; use "
                                    "sparse=False in the layer that has it")
        if not self._any_received:
            self.notice_writes()
            self._any_received = True
        if left is not None and self._left.get(index) is left and left.is_last:
            gradient = self._with_last(left, gradient)
        if left is not None and left.factor != 1:
            self.apply_factors()
        if self._received[index] == self._most > 0:
            is_taken = self._accumulate(index, gradient)
        else:
            is_taken = self._hand_over(index, gradient)
            self._received[index] += 1
        if left is not None:
            left.came, left.is_zero, left.is_own = None, False, False
        if is_taken:
            self._leave(index)
            if (left := self._left.get(index)) is not None:
                left.had_graph |= gradient.requires_grad

    def _accumulate(self, index: int, gradient: torch.Tensor) -> bool:
        """Adds a gradient beyond those that a step was to have; returns whether it took it."""
        raise InvalidArgumentError(
            f"{self.entries[index].name} has had the {self._most} gradient(s) of this step: "
            "call step() or zero_grad() before the next backward pass, or make the optimizer "
            "with accumulation_steps=N to add up those of N passes")

    def _with_last(self, left: GradientHandle, gradient: torch.Tensor) -> torch.Tensor:
        """Adds a gradient to that of the last step, which the program has not dropped."""
        gradient = left.values() + gradient
        left.revive(self)
        return gradient

    def end_step(self, end: Callable[[], None]) -> None:
        """Ends a step by `end`. Its gradients stay in `grad`, as with torch, until the program
        drops them."""
        left, self._left = self._left, {}
        try:
            end()
        finally:
            for each in left.values():
                each.end_step(stays=self._keeps_last)
            self._left = left

    # Gradients that are here, and are tensors of the program's too.

    def gradient(self, index: int) -> torch.Tensor:
        """Returns a copy of a parameter's gradient, in fp32 and in its shape."""
        raise NotImplementedError

    def last_gradient(self, index: int) -> torch.Tensor:
        """Returns that of the last step, if none has come since."""
        raise NotImplementedError

    def gradient_norm(self, index: int) -> float:
        """Returns the L2 norm of that, as the update computes it."""
        raise NotImplementedError

    def settle(self, index: int) -> None:
        """Waits for what backward passes have handed over. Here it has come."""

    def _scale(self, index: int, factor: float) -> None:
        """Multiplies a gradient that is here."""
        raise NotImplementedError

    def bring(self, index: int, values: torch.Tensor) -> None:
        """Makes these values the parameter's `grad`, unless the program has put another there."""
        if self._parameters[index].grad is self._left.get(index):
            self._parameters[index].grad = values

    def take_home(self) -> None:
        """Takes the values of gradients that the program has in `grad`."""
        raise NotImplementedError

    def factors(self) -> set[float]:
        """The factors by which the program has multiplied the gradients of the step."""
        return {self._left[index].factor if index in self._left else 1.0
                for index, count in enumerate(self._received) if count > 0}

    def apply_factors(self) -> None:
        """Multiplies each gradient by its own factor, before others are added to it."""
        for index, left in self._left.items():
            if left.factor != 1 and self._received[index] > 0:
                self._scale(index, left.factor)
                left.factor = 1.0

    def keeps_any(self) -> bool:
        """Whether a gradient was handed over that the program has not dropped or replaced."""
        return any(not left.dropped and left.stands_in(self._parameters[index])
                   for index, left in self._left.items())

    def settle_clip(self) -> None:
        """Clips the gradients that a clip was asked for, before others join or replace them."""
        if self._uses is not None:
            self._uses.settle_clip()

    def multiply(self, factor: float) -> None:
        """Multiplies all gradients of the step, before the program's next use of them."""
        for left in self._left.values():
            left.factor *= factor

    def first_changed(self) -> str | None:
        """The name of a parameter whose gradient the program has multiplied or may have changed, if
        there is one."""
        return next((left.owner for left in self._left.values()
                     if left.factor != 1 or left.home is not None), None)

    def _of_another(self, index: int, gradient: GradientHandle) -> torch.Tensor | None:
        """Returns the gradient that another optimizer has, with what autograd has added to it.
        Raises for one of another parameter here, whose values would be dropped for this one's."""
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
                left = self._left[index] = GradientHandle.of(
                    parameter, self.entries[index].name, self._uses, self, index)
        parameter.grad = left

    def notice_drops(self) -> None:
        """Forgets gradients that were handed over and that the program has dropped since: `grad` is
        None, was set to zero, or is another tensor. Those that are zero stay in `grad`."""
        parameters = self._parameters
        dropped = [index for index, left in self._left.items() if left.dropped or (
            parameters[index].grad is not left and not left.stands_in(parameters[index]))]
        if dropped:
            self.settle_clip()
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
            left.revive(self)
            self._left[index] = self._parameters[index].grad = left

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
        """Does that for gradients that no backward pass handed over, those set to zero, and those
        of the last step that the program has not dropped."""
        self._check_torn()
        for index, parameter in enumerate(self._parameters):
            left = self._left.get(index)
            if left is not None and left.came is not None and not left.is_own:
                raise NotSupportedError(
                    f"p.grad of {left.owner} was given to another parameter, whose gradient was "
                    "added to it: give it p.grad.clone(); zero_grad() forgets this step")
            if left is not None and parameter.grad is left and (left.is_zero or left.is_last):
                left.came = left.values()  # torch updates with them again
                left.revive(self)
            if parameter.grad is not None and index < self._trained:
                self.add_gradient(index)

    def any_received(self) -> bool:
        """Whether a gradient of the step under way is here."""
        return self._any_received

    def received(self, index: int) -> int:
        """How many gradients of a parameter have come in the step under way."""
        return self._received[index]

    def first_without_gradient(self) -> str | None:
        """The name of a parameter that has no gradient in the step under way, if there is one."""
        lacks = (entry.name for entry, count in zip(self.entries, self._received, strict=False)
                 if count == 0)
        return next(lacks, None)

    def _forget(self) -> None:
        self._torn: int | None = None  # a parameter that backward passes of two threads have met at
        self._received = [0] * self._trained
        self._any_received = False
        self._forget_all_left()

    def _forget_all_left(self) -> None:
        for index in list(self._left):
            self._forget_left(index)
