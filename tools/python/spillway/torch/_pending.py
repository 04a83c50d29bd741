"""Parameters whose deferred update may still run: what torch does with one waits for it first.

Such a parameter is of a class of its own meanwhile, which torch's functions ask what to do. Once
its update is over it is of its own class again, and nothing is asked any more.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

#: What reads and writes no value of a parameter, and so need not wait.
_OF_FORM = {
    *(getattr(torch.Tensor, name).__get__ for name in (
        "grad", "requires_grad", "shape", "dtype", "device", "layout", "ndim", "is_leaf",
        "is_cuda")),
    torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__, torch.Tensor.numel, torch.Tensor.size,
    torch.Tensor.dim, torch.Tensor.is_floating_point, torch.Tensor.element_size}

_pending_kinds: dict[type, type] = {}  # by the class of a parameter
_own_kinds: dict[type, type] = {}      # the other way round
_updaters: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weak, and a number there; by parameter


class Updater(Protocol):
    """What decides updates of parameters, by their numbers."""

    def wait(self, index: int) -> None:
        """Waits for the update of a parameter that was decided, and makes it settled."""


def register(parameters: Iterable[torch.Tensor], updater: Updater) -> None:
    """Makes `updater` the one that updates these parameters, whose numbers are their places."""
    for index, parameter in enumerate(parameters):
        _updaters[parameter] = weakref.ref(updater), index


def make_pending(parameters: Iterable[torch.Tensor]) -> None:
    """Makes torch's functions wait for the updates of these parameters, which are registered."""
    for parameter in parameters:
        kind = type(parameter)
        if kind not in _own_kinds:
            parameter.__class__ = _pending_kinds.get(kind) or _pending_kind(kind)


def make_settled(parameters: Iterable[torch.Tensor]) -> None:
    """Ends that for parameters whose updates are over."""
    for parameter in parameters:
        if (kind := _own_kinds.get(type(parameter))) is not None:
            parameter.__class__ = kind


def _pending_kind(kind: type) -> type:
    def ask(_: type, function: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _OF_FORM:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        # A function may be asked about parameters that are not among its arguments.
        for parameter in _pending_in(tree_leaves((args, kwargs))) or _pending_in(_updaters):
            _wait_for(parameter)
        return function(*args, **kwargs)

    # What a program makes by calling type(parameter), such as a copy, is not pending.
    pending = _pending_kinds[kind] = type(kind.__name__, (kind,), {
        "__torch_function__": classmethod(ask), "__module__": kind.__module__,
        "__new__": lambda _, *args, **kwargs: kind(*args, **kwargs)})
    _own_kinds[pending] = kind
    return pending


def _pending_in(found: Iterable[Any]) -> list[torch.Tensor]:
    return [each for each in found if type(each) in _own_kinds]


def _wait_for(parameter: torch.Tensor) -> None:
    updater, index = _updaters.get(parameter, (lambda: None, 0))
    if (alive := updater()) is not None:
        alive.wait(index)
    make_settled([parameter])
