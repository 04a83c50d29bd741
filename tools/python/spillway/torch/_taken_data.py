"""Parameters whose `data` a program takes, and may write without a count that torch would keep.

Such a parameter is of a class of its own, whose `data` tells whoever holds it. What was taken is
then compared with a fingerprint of what it was.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

_ROW = 1024  #: words

_watched_kinds: dict[type, type] = {}  # by the class of a parameter
_own_kinds: dict[type, type] = {}      # the other way round
_holders: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weak, and a number there; by parameter


class Holder(Protocol):
    """What holds parameters, by their numbers."""

    def note_taken(self, index: int) -> None:
        """Notes that the program has `data` of a parameter, and may write it."""


def watch(parameters: Iterable[tuple[int, torch.Tensor]], holder: Holder) -> None:
    """Makes `data` of numbered parameters tell their holder."""
    for index, parameter in parameters:
        _holders[parameter] = weakref.ref(holder), index
        kind = type(parameter)
        if kind not in _own_kinds:
            parameter.__class__ = _watched_kinds.get(kind) or _watched_kind(kind)


def unwatch(parameters: Iterable[torch.Tensor]) -> None:
    """Ends that."""
    for parameter in parameters:
        if (kind := _own_kinds.get(type(parameter))) is not None:
            parameter.__class__ = kind


def is_plain(value: object) -> bool:
    """Whether a value is of torch's own class of parameters, or is one that is watched."""
    kind = type(value)
    return _own_kinds.get(kind, kind) is torch.nn.Parameter


def data_of(parameter: torch.Tensor) -> torch.Tensor:
    """Returns `data` and tells nobody."""
    return torch.Tensor.data.__get__(parameter)


def _watched_kind(kind: type) -> type:
    def get(parameter: torch.Tensor) -> torch.Tensor:
        values = data_of(parameter)
        holder, index = _holders.get(parameter, (lambda: None, 0))
        if (alive := holder()) is not None:
            alive.note_taken(index)
        return values

    def put(parameter: torch.Tensor, values: Any) -> None:
        torch.Tensor.data.__set__(parameter, values)

    # What a program makes by calling type(parameter), such as a copy, is not watched.
    watched = _watched_kinds[kind] = type(kind.__name__, (kind,), {
        "data": property(get, put), "__module__": kind.__module__,
        "__new__": lambda _, *args, **kwargs: kind(*args, **kwargs)})
    _own_kinds[watched] = kind
    return watched


def fingerprint(values: torch.Tensor) -> torch.Tensor:
    """Returns sums over the rows and columns of a table of the words of dense values, which every
    write changes that is not made to keep them."""
    flat = values.detach().as_strided((values.numel(),), (1,)).view(torch.uint8)
    words = flat[:flat.numel() // 8 * 8].view(torch.int64)
    table = words[:words.numel() // _ROW * _ROW].view(-1, _ROW)
    return torch.cat([table.sum(0), table.sum(1), words[table.numel():],
                      flat[8 * words.numel():].to(torch.int64)])
