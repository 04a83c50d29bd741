"""A gradient that its optimizer has, and that is a tensor all the same.

It stands in `grad` without memory of its own. Factors by which a program multiplies it wait for the
update, and its norm is that of the update. Whatever else a program reads of it comes from where the
optimizer keeps it. What would change it, or share its memory, brings it home: `grad` is a tensor of
torch's then, whose values `step` takes. After the step it is the gradient of that one, until the
program drops it: as with torch, the next backward pass adds to it.
"""
from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._pytree import tree_map_only

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._handed_over import ADDS, UNSCALE, ZEROS, HandedOver, Uses, in_backward

_FACTORS: dict[str, Callable[[float, Any], float]] = {
    "aten::mul_": lambda factor, by: factor * float(by),
    "aten::div_": lambda factor, by: factor / float(by)}
_FACTORS_OF_LISTS = {f"aten::_foreach_{name[6:]}": change for name, change in _FACTORS.items()}
_OF_FORM = ("aten::detach", "aten::detach_")
_NORMS = ("aten::linalg_vector_norm", "aten::norm", "aten::_foreach_norm")


def _gone() -> None:
    """Stands for the keeper of a gradient whose step is over."""


class Keeper(Protocol):
    """What keeps the gradients of parameters, by their numbers."""

    def gradient(self, index: int) -> torch.Tensor:
        """Returns a copy of the sum, in fp32 and in the parameter's shape."""

    def gradient_norm(self, index: int) -> float:
        """Returns the L2 norm of the sum, as the update computes it."""

    def last_gradient(self, index: int) -> torch.Tensor:
        """Returns a copy of the sum of the last step, likewise."""

    def settle(self, index: int) -> None:
        """Waits for what backward passes have handed over: a factor is one of that alone."""

    def bring(self, index: int, values: torch.Tensor) -> None:
        """Makes these values the parameter's `grad`, unless the program has put another there."""


class GradientHandle(HandedOver):
    """The gradient of one parameter in one step."""

    _keeper: Callable[[], Keeper | None]
    _index: int

    @staticmethod
    def of(parameter: torch.Tensor, name: str, uses: Uses, keeper: Keeper,
           index: int) -> GradientHandle:
        """Makes the handle of a parameter's gradient."""
        self = GradientHandle(parameter, name, uses)
        self._keeper, self._index = weakref.ref(keeper), index
        return self

    def expire(self) -> None:
        """Ends it: the step is over, and what was kept is gone. Values at home stay."""
        self._keeper = _gone

    def revive(self, keeper: Any) -> None:
        """Makes it the one of a gradient to come, which begins with zeros."""
        self._keeper, self.factor, self.is_last = weakref.ref(keeper), 1.0, False

    def end_step(self, stays: bool) -> None:
        """Makes it the gradient of the last step, whose values stay or are gone."""
        self.is_last = True
        if not stays:
            self.expire()
            self.factor = 1.0

    def take(self) -> torch.Tensor | None:
        """Returns the gradient and what came, to one who has it no longer."""
        came, self.came = self.came, None
        values = self.values().clone()
        return values if came is None else values.add_(came)

    def values(self) -> torch.Tensor:
        """Returns the gradient, a copy unless it is at home."""
        self.uses.settle_clip()
        if self.home is not None:
            return self.home
        if self.had_graph and torch.is_grad_enabled():
            raise NotSupportedError(
                f"the gradient of {self.owner} has left without the graph that create_graph=True "
                "has made of it: take what you differentiate from torch.autograd.grad(..., "
                "create_graph=True)")
        if self.dropped or self.is_zero:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        keeper = self._kept()
        total = (keeper.last_gradient if self.is_last else keeper.gradient)(self._index)
        return (total if self.factor == 1 else total * self.factor).to(self.device, self.dtype)

    def norm_of_update(self) -> torch.Tensor:
        """Returns its L2 norm as fp32: that of the update."""
        self.uses.settle_clip()
        if self.had_graph or self.is_last:
            return torch.linalg.vector_norm(self.values(), dtype=torch.float32)
        norm = 0.0 if self.dropped or self.is_zero else (
            self._kept().gradient_norm(self._index) * abs(self.factor))
        return torch.tensor(norm, dtype=torch.float32, device=self.device)

    def _is_finite(self) -> bool:
        """Whether its elements are, as the update would find."""
        if self.is_last:
            return bool(self.values().isfinite().all())
        return self.dropped or self.is_zero or math.isfinite(
            self._kept().gradient_norm(self._index) * self.factor)

    def bring(self) -> torch.Tensor:
        """Makes it a tensor with memory, in `grad` too, and returns that."""
        if self.home is None:
            self._come_home(self.values())
        return self.home

    def _come_home(self, values: torch.Tensor) -> None:
        """Makes values what it is at home."""
        keeper = self._kept()
        self.home, self.factor = values, 1.0
        self.dropped = self.is_zero = self.is_last = False
        keeper.bring(self._index, values)

    def _is_gone(self) -> bool:
        """Whether it has no values any more, which a model that is moved or converted need not
        have."""
        return self.home is None and not (self.dropped or self.is_zero) and self._keeper() is None

    def _kept(self) -> Keeper:
        keeper = self._keeper()
        if keeper is None:
            raise InvalidArgumentError(
                f"this gradient of {self.owner} has gone with its step, or with its optimizer: "
                "read it before, keep p.grad.clone(), or call zero_grad() before the next backward "
                "pass")
        return keeper

    # What reaches the memory of a tensor without an operation of torch.

    @property
    def data(self) -> torch.Tensor:
        """The same gradient, to which everything that is done to it is done."""
        return self

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        if values is self:  # as after p.grad.data += 1
            return
        values = values.values() if isinstance(values, GradientHandle) else values
        if (self.dtype, self.device) == (values.dtype, values.device):
            self.bring().data = values
        else:  # a model was converted, and `grad` takes no values of before
            self._come_home(values.detach())

    def numpy(self, *, force: bool = False) -> Any:
        return self.bring().numpy(force=force)

    def tolist(self) -> Any:
        return self.values().tolist()

    def data_ptr(self) -> int:
        return self.bring().data_ptr()

    def untyped_storage(self) -> Any:
        if self.home is None and torch._guards.TracingContext.try_get() is not None:
            return torch.UntypedStorage(self.nbytes, device="meta")  # of which tracing reads a size
        return self.bring().untyped_storage()

    def share_memory_(self) -> torch.Tensor:
        return self if self._is_gone() else self.bring().share_memory_()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.bring().__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.values().__dlpack_device__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copy = self.values().clone()
        return copy

    def __repr__(self, **keywords: Any) -> str:
        return self.values().__repr__(**keywords)

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, operation = kwargs or {}, function._schema.name
        target = args[0] if args else None
        if isinstance(target, cls) and target.home is None:
            if operation in ADDS and _is_autograd():
                target.came = args[1]
                return target if operation == "aten::add_" else args[1]
            if operation in _OF_FORM or operation == "aten::_to_copy" and target._is_gone():
                return target
            target.uses.settle_clip()
            if operation in ZEROS:
                target.dropped = True
                return target
            if operation in _FACTORS and not kwargs and target._take_factor(
                    _FACTORS[operation], args[1:]):
                return target
        if operation in _NORMS and _is_l2(args[1:], kwargs):
            return cls._norms(target)
        if isinstance(target, (list, tuple)):
            for each in target:
                if isinstance(each, cls):
                    each.uses.settle_clip()
            if operation in _FACTORS_OF_LISTS:
                return cls._multiply(_FACTORS_OF_LISTS[operation], target, args[1:])
            if operation in ZEROS or operation == UNSCALE:
                return cls._change_lists(function, operation, target, args[1:])
        shares = any(argument.alias_info is not None for argument in function._schema.arguments)
        args, kwargs = tree_map_only(cls, cls.bring if shares else cls.values, (args, kwargs))
        return function(*args, **kwargs)

    def _take_factor(self, change: Callable[[float, Any], float], others: tuple) -> bool:
        """Multiplies by a number, unless it is none that an update can have."""
        if len(others) != 1 or not _is_number(others[0]):
            return False
        if (by := float(others[0])) == 0 or not math.isfinite(by):
            return False
        factor = change(self.factor, by)
        if factor == 0 or not math.isfinite(factor):
            return False
        self._kept().settle(self._index)
        self.factor = factor
        return True

    @classmethod
    def _norms(cls, target: Any) -> Any:
        """Returns the L2 norm of a tensor, or of each of a list."""
        def norm(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, cls) and tensor.home is None:
                return tensor.norm_of_update()
            tensor = tensor.home if isinstance(tensor, cls) else tensor
            return torch.linalg.vector_norm(tensor)

        return [norm(each) for each in target] if isinstance(target, (list, tuple)) else norm(
            target)

    @classmethod
    def _multiply(cls, change: Callable[[float, Any], float], target: Any, others: tuple) -> None:
        """Multiplies each of a list by a number, by its own of a list, or by a tensor."""
        by = others[0] if isinstance(others[0], (list, tuple)) else [others[0]] * len(target)
        for each, factor in zip(target, by, strict=True):
            if not (isinstance(each, cls) and each.home is None
                    and each._take_factor(change, (factor,))):
                real = each.bring() if isinstance(each, cls) else each
                real.mul_(factor) if change is _FACTORS["aten::mul_"] else real.div_(factor)

    @classmethod
    def _change_lists(cls, function: Any, operation: str, target: Any, others: tuple) -> None:
        """Sets each of a list to zero, or divides it by the scale of torch.amp.GradScaler."""
        rest = []
        for each in target:
            if not isinstance(each, cls) or each.home is not None:
                rest.append(each.home if isinstance(each, cls) else each)
            elif operation in ZEROS:
                each.dropped = True
            else:
                found_inf, inverse = others
                each.uses.note_unscaled(found_inf, float(inverse))
                each._kept().settle(each._index)
                if not each._is_finite():  # the program may change the values before the step
                    found_inf.fill_(1.0)
                each.factor *= float(inverse)
        if rest:
            function(rest, *others)


def _is_autograd() -> bool:
    """Whether autograd accumulates, and no function of the program that runs in a backward pass."""
    if not in_backward():
        return False
    try:
        caller = sys._getframe(2)  # of the operation
    except ValueError:  # a thread of autograd's own
        return True
    return caller.f_code is _engine_run_backward.__code__


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not isinstance(value, HandedOver)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_l2(others: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a norm is that of all elements, with the exponent 2 and no type of its own."""
    if set(kwargs) - {"ord", "p"} or len(others) > 1:
        return False
    exponent = others[0] if others else kwargs.get("ord", kwargs.get("p", 2))
    return exponent in (2, None)
