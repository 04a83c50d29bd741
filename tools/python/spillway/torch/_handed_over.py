"""What stands in `grad` for a gradient that its optimizer has; it sees what becomes of it.

torch's functions find a tensor there. That it was replaced by None drops the gradient, and that it
was set to zero makes it a gradient of zeros, as with torch. What was read of it, or done to it,
changes no gradient: `step` says so.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from spillway.errors import InvalidArgumentError, NotSupportedError

UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
ADDS = ("aten::add_", "aten::add")
ZEROS = ("aten::zero_", "aten::_foreach_zero_")
_MULTIPLY = ("aten::mul_", "aten::_foreach_mul_")


class Uses:
    """What a program has done to gradients that its optimizer has."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins a new step."""
        self._unscaled: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._has_unscaled = False
        self._clip: Callable[[], None] | None = None
        self._read: tuple[str, str] | None = None     # a parameter and an operation
        self._changed: tuple[str, str] | None = None  # likewise
        self._unwatched: str | None = None            # a parameter

    def note_read(self, name: str, operation: str) -> None:
        self._read = self._read or (name, operation)

    def note_change(self, name: str, operation: str) -> None:
        self._changed = self._changed or (name, operation)

    def note_unwatched(self, name: str) -> None:
        """Notes a gradient of a loss that the engine has neither divided nor scaled."""
        self._unwatched = self._unwatched or name

    def note_unscaling(self, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
        """Notes that torch.amp.GradScaler has multiplied gradients by a scale, which is 1 where it
        only looks at them, and wants to know whether they are finite."""
        self._unscaled.append((found_inf, inverse_scale))

    def note_unscaled(self, found_inf: torch.Tensor, inverse_scale: float) -> None:
        """Notes that of gradients that have taken the factor."""
        self._unscaled.append((found_inf, torch.ones(())))
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

    def unscaled_by(self) -> float:
        """The scale that GradScaler.unscale_ meant to divide out."""
        return max((1.0 / float(inverse) for _, inverse in self._unscaled), default=1.0)

    def tell_skipped(self) -> None:
        """Tells GradScaler that gradients were not finite. What it has found itself stays."""
        for found_inf, _ in self._unscaled:
            found_inf.fill_(1.0)

    def check(self, clips: bool) -> None:
        """Raises if a clip or another change was meant that the update would not have; `clips`:
        one was asked for that it has."""
        if self._unwatched is not None:
            raise InvalidArgumentError(
                f"the gradient of {self._unwatched} came from a loss that no output of engine(...) "
                "leads to, and so it is not divided by gradient_accumulation_steps, or has no loss "
                "scale: call engine.backward(loss); zero_grad() forgets this step")
        if self._changed is not None:
            name, operation = self._changed
            if operation == "copy_":
                raise InvalidArgumentError(
                    f"{name} has a gradient although the backward pass has handed its gradient "
                    "over: something writes it again, such as DistributedDataParallel. Leave that "
                    "wrapper out, and give the optimizer process_group="
                    "torch.distributed.group.WORLD; or call zero_grad() before you set p.grad")
            raise NotSupportedError(
                f"the gradient of {name} was changed ({operation}) after the backward "
                "pass had handed it to the optimizer, and so nothing changed: clip with max_norm= "
                "or optimizer.clip_grad_norm_, scale with step(divisor=), and change single "
                "gradients with parameter.register_hook; zero_grad() forgets this step")
        if self._read is not None and not clips:
            name, operation = self._read
            unscaled = ("; leave scaler.unscale_ out, or call optimizer.clip_grad_norm_(max_norm, "
                        "scaler) after it" if self.unscaled_by() != 1 else "")
            raise NotSupportedError(
                f"the gradient of {name} was read ({operation}), as torch.nn.utils.clip_grad_norm_ "
                "does, after the backward pass had handed it to the optimizer: nothing was clipped."
                " Make the optimizer with max_norm=, or call optimizer.clip_grad_norm_(max_norm) "
                f"before step(){unscaled}. optimizer.grad_norm is the norm; zero_grad() forgets "
                "this step")


class HandedOver(torch.Tensor):
    """Has the form of a gradient and no memory. Whoever reads it finds zeros."""

    uses: Uses
    owner: str                        #: the name of the parameter, in errors
    came: torch.Tensor | None = None  #: the gradient that autograd has added since
    home: torch.Tensor | None = None  #: its values, where they are in `grad` again
    factor = 1.0          #: by which it is multiplied in the update
    dropped = False       #: the program has set it to zero
    is_zero = False       #: that was noticed: the gradient is zero unless another one comes
    was_read = False      #: the program has seen zeros
    had_graph = False     #: the gradient was made to be differentiated
    is_own = False        #: what came is of its own parameter

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, name: str, uses: Uses) -> HandedOver:
        self = torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=parameter.dtype,
                                                   device=parameter.device)
        torch._C._set_throw_on_mutable_data_ptr(self)  # which would be a null pointer
        self.owner, self.uses = name, uses
        return self

    @property
    def data(self) -> HandedOver:
        """The same, so that what is done to it is noted."""
        return self

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self.uses.note_change(self.owner, "grad.data = another tensor")

    def stands_in(self, parameter: torch.Tensor) -> bool:
        """Whether it, or what it has become, is the `grad` of a parameter."""
        gradient = parameter.grad
        return gradient is self or gradient is not None and gradient is self.home

    def expire(self) -> None:
        """Ends it with its step."""

    def revive(self, keeper: Any) -> None:
        """Makes it the one of a gradient to come."""

    def take(self) -> torch.Tensor | None:
        """Returns the gradient that came, and has it no longer."""
        came, self.came = self.came, None
        return came

    def _refuse(self, *_: Any, **_keywords: Any) -> Any:
        raise NotSupportedError(
            f"the gradient of {self.owner} has no memory to be read, shared or written to a file, "
            "for the backward pass has handed it to the optimizer: take values in "
            "parameter.register_hook, or from torch.autograd.grad")

    numpy = tolist = data_ptr = share_memory_ = __reduce_ex__ = _refuse
    __dlpack__ = __dlpack_device__ = _refuse

    def __repr__(self) -> str:
        return f"<the gradient of {self.owner}, which its optimizer has>"

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, operation = kwargs or {}, function._schema.name
        target = args[0] if args else None
        if operation in ADDS and isinstance(target, cls) and in_backward():
            target.came = args[1]
            return target if operation == "aten::add_" else args[1]
        tensors = list(target) if isinstance(target, (list, tuple)) else [target]
        if _writes_first(function) and any(isinstance(tensor, cls) for tensor in tensors):
            cls._change(function, operation, tensors, args[1:], kwargs)
            return target if function._schema.returns else None
        found: list[HandedOver] = []

        def zeros(of: HandedOver) -> torch.Tensor:
            of.was_read = True
            found.append(of)
            return torch.zeros((), dtype=of.dtype, device=of.device).expand(of.shape)

        args, kwargs = tree_map_only(cls, zeros, (args, kwargs))
        found[0].uses.note_read(found[0].owner, operation.removeprefix("aten::"))
        return function(*args, **kwargs)

    @classmethod
    def _change(cls, function: Any, operation: str, tensors: list[Any], others: tuple,
                kwargs: dict[str, Any]) -> None:
        """Does what can be done: nothing to what is not here, and all to gradients beside it."""
        mine = [tensor for tensor in tensors if isinstance(tensor, cls)]
        for each in mine:
            if operation in ZEROS:
                each.dropped = True
            elif operation == UNSCALE:
                each.uses.note_unscaling(others[0], others[1])
            elif not (operation in _MULTIPLY and _is_one(others[0])):
                each.uses.note_change(each.owner, operation.removeprefix("aten::"))
        rest = [tensor for tensor in tensors if not isinstance(tensor, cls)]
        if rest:
            function(rest, *others, **kwargs)


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def _writes_first(function: Any) -> bool:
    """Whether an operation changes its first argument; those with `out` change another."""
    arguments = function._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and alias.is_write


def _is_one(factor: Any) -> bool:
    """Whether it is a number that changes nothing, as of a clip that finds a norm of zero."""
    return not isinstance(factor, (list, tuple)) and bool(factor == 1)
