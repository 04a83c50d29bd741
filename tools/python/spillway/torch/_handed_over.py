"""What stands in `grad` for a gradient that its optimizer has, and what a program does to it."""
from __future__ import annotations

from collections.abc import Callable

import torch

from spillway.errors import InvalidArgumentError

UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
ADDS = ("aten::add_", "aten::add")
ZEROS = ("aten::zero_", "aten::_foreach_zero_")


class Uses:
    """What a program has done to gradients that its optimizer has."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins a new step."""
        self._found_inf: list[torch.Tensor] = []
        self._has_unscaled = False
        self._clip: Callable[[], None] | None = None
        self._unwatched: str | None = None  # a parameter

    def note_unwatched(self, name: str) -> None:
        """Notes a gradient of a loss that the engine has neither divided nor scaled."""
        self._unwatched = self._unwatched or name

    def note_unscaled(self, found_inf: torch.Tensor, inverse_scale: float) -> None:
        """Notes that torch.amp.GradScaler has multiplied gradients by a factor, which is 1 where it
        only looks at them, and wants to know whether they are finite."""
        self._found_inf.append(found_inf)
        self._has_unscaled |= inverse_scale != 1

    def keep_clip(self, clip: Callable[[], None]) -> None:
        """Keeps a clip that was asked for and that the update will do, unless the program uses
        gradients before: these must be clipped then."""
        self._clip = clip

    def settle_clip(self) -> None:
        """Clips what is to be used, if a clip was asked for."""
        clip, self._clip = self._clip, None
        if clip is not None:
            clip()

    def has_unscaled(self) -> bool:
        """Whether gradients of this step have a scale divided out."""
        return self._has_unscaled

    def tell_skipped(self) -> None:
        """Tells GradScaler that gradients were not finite. What it has found itself stays."""
        for found_inf in self._found_inf:
            found_inf.fill_(1.0)

    def check(self) -> None:
        """Raises for a gradient of a loss that the engine has not seen."""
        if self._unwatched is not None:
            raise InvalidArgumentError(
                f"the gradient of {self._unwatched} came from a loss that no output of engine(...) "
                "leads to, and so it is not divided by gradient_accumulation_steps, or has no loss "
                "scale: call engine.backward(loss); zero_grad() forgets this step")


class HandedOver(torch.Tensor):
    """Has the form of a gradient and no memory."""

    uses: Uses
    owner: str                        #: the name of the parameter, in errors
    came: torch.Tensor | None = None  #: the gradient that autograd has added since
    home: torch.Tensor | None = None  #: its values, where they are in `grad` again
    factor = 1.0          #: by which it is multiplied in the update
    dropped = False       #: the program has set it to zero
    is_zero = False       #: that was noticed: the gradient is zero unless another one comes
    had_graph = False     #: the gradient was made to be differentiated
    is_own = False        #: what came is of its own parameter
    is_last = False       #: it is of the last step, and the program has not dropped it

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, name: str, uses: Uses) -> HandedOver:
        self = torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=parameter.dtype,
                                                   device=parameter.device)
        torch._C._set_throw_on_mutable_data_ptr(self)  # which would be a null pointer
        self.owner, self.uses = name, uses
        return self

    def stands_in(self, parameter: torch.Tensor) -> bool:
        """Whether it, or what it has become, is the `grad` of a parameter."""
        gradient = parameter.grad
        return gradient is self or gradient is not None and gradient is self.home


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1
