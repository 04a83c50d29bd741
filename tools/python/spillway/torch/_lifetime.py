"""How long an optimizer holds what it has: state and lock go with it, parameters stay with the
model."""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from spillway._load import native
from spillway._state_folders import give_back
from spillway.errors import InvalidArgumentError

#: The optimizer that holds a parameter, as a weak reference.
_holders: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Lifetime:
    """What an optimizer holds beside itself: hooks and shards, until it is closed or gone."""

    def __init__(self, owner: WithLifetime) -> None:
        self.hooks: list[Any] = []
        self.shards: list[Any] = []
        self.streamings: list[Any] = []
        self.folders: list[str] = []
        self._ended_by: str | None = None
        # Without a reference to the owner, whose end this is.
        weakref.finalize(owner, self.end, "it is gone").atexit = False

    def end(self, why: str) -> None:
        """Applies an update that is decided, frees state, and unlocks its folders. Parameters keep
        their values, in the memory in which they are."""
        if self._ended_by is not None:
            return
        self._ended_by = why
        try:
            self.release((0, 0, 0))
        finally:
            give_back(self.folders)

    def counts(self) -> tuple[int, int, int]:
        """Counts what is held."""
        return len(self.hooks), len(self.streamings), len(self.shards)

    def release(self, counts: tuple[int, int, int]) -> None:
        """Lets go of what is held beyond these counts, the rest too where a part raises."""
        hooks, streamings, shards = counts
        with contextlib.ExitStack() as calls:  # begins with the last one
            calls.callback(native.release_freed_memory)
            for shard in self.shards[shards:]:
                calls.callback(shard.release)
            for streaming in self.streamings[streamings:]:
                calls.callback(streaming.detach)
            for hook in self.hooks[hooks:]:
                calls.callback(hook.remove)
            del self.hooks[hooks:], self.streamings[streamings:], self.shards[shards:]

    def check_open(self) -> None:
        """Raises if the optimizer has ended."""
        if self._ended_by is not None:
            raise InvalidArgumentError(f"this optimizer has ended: {self._ended_by}; make a new "
                                       "one with the model's parameters, and load its state")


def hold(owner: WithLifetime, parameters: Iterable[torch.Tensor]) -> None:
    """Makes `owner` the one that holds these parameters: another one that does is closed."""
    for parameter in parameters:
        reference = _holders.get(parameter)
        before = None if reference is None else reference()
        if before is not None and before is not owner:
            before.end("another optimizer was made with parameters that it had")
        _holders[parameter] = weakref.ref(owner)


class WithLifetime(torch.optim.Optimizer):
    """An optimizer that ends before its parameters do."""

    _lifetime: Lifetime
    _places: dict[torch.Tensor, tuple[Any, int]]
    _absent: list[tuple[int, int]]

    @property
    def _shards(self) -> list[Any]:
        self._lifetime.check_open()
        return self._lifetime.shards

    def _end_passes(self) -> None:
        """Ends the pass that an error or Ctrl-C has cut off: its unit leaves the device."""
        for streaming in self._lifetime.streamings:
            streaming.leave()

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Surrounds what adds parameters: after an error it has added none."""
        counts, groups = self._lifetime.counts(), len(self.param_groups)
        places, absent = dict(self._places), list(self._absent)
        try:
            yield
        except BaseException:
            self._lifetime.release(counts)
            del self.param_groups[groups:]
            self._places, self._absent = places, absent
            for parameter, owner in list(_holders.items()):
                if owner() is self and parameter not in places:
                    del _holders[parameter]
            raise

    def close(self) -> None:
        """Applies an update that is decided, frees state and unlocks folders. Parameters keep their
        values and are those of any model; the optimizer takes no step any more. Where the update
        cannot be applied it raises the reason, and has closed all the same."""
        self.end("close() was called")

    def end(self, why: str) -> None:
        """Does that; later calls say why."""
        try:
            self._end_passes()
            for shard in self._lifetime.shards:
                shard.finish()
        finally:
            self._places.clear()
            self._lifetime.end(why)

    def __enter__(self) -> WithLifetime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
