"""What `optimizer.state` is, where the state is in memory of the optimizer."""
from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from spillway.errors import NotSupportedError


class EntryElsewhere:
    """What `optimizer.state` has for a parameter. Whoever looks into it gets an error; Lightning,
    which moves what it finds in entries to its device and puts them back, finds nothing."""

    def __getattr__(self, name: str) -> Any:
        raise StateElsewhere.refusal()

    def _refuse(self, *_: Any) -> Any:
        raise StateElsewhere.refusal()

    __getitem__ = __setitem__ = __delitem__ = __iter__ = __len__ = _refuse


class StateElsewhere(MutableMapping):
    """What `optimizer.state` is: it has the parameters with state, and refuses their entries."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    def __iter__(self) -> Iterator[torch.Tensor]:
        optimizer = self._optimizer()
        return iter([parameter for parameter, (shard, index) in optimizer._places.items()
                     if shard.updates(index) > 0])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, parameter: object) -> bool:
        optimizer = self._optimizer()
        if not isinstance(parameter, torch.Tensor) or parameter not in optimizer._places:
            return False
        shard, index = optimizer._places[parameter]
        return shard.updates(index) > 0

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        if parameter not in self:
            raise self.refusal()  # where torch's would make an entry
        return _ENTRY

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        if state is not _ENTRY or parameter not in self:
            raise self.refusal()

    def __delitem__(self, parameter: torch.Tensor) -> None:
        raise self.refusal()

    @staticmethod
    def refusal() -> NotSupportedError:
        """Returns the error that whoever reads or changes an entry gets."""
        return NotSupportedError(
            "optimizer.state has no entries here, for the state is in memory of the optimizer, "
            "which nothing done to them would change: read optimizer.state_dict(), change what it "
            "has and give it to optimizer.load_state_dict(); one whose \"state\" is {} resets all")


_ENTRY = EntryElsewhere()
