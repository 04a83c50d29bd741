"""Where what is frozen of a streamed model is kept."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from spillway._load import native
from spillway._paths import Paths, existing_folders
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._registered import Registered

HOMES = ("auto", "host", "nvme")
_REMEDY = ('name a folder on each drive: frozen_nvme=["/disk"], or nvme= of the optimizer, which '
           "then has its state there too")


def check_home(home: str, folders: list[str]) -> None:
    """Raises for a home that there is not, and for folders that it does not need."""
    if home not in HOMES:
        raise InvalidArgumentError(f"frozen is {home!r}; it is one of {', '.join(HOMES)}")
    if home == "host" and folders:
        raise InvalidArgumentError(
            f'frozen is "host", and frozen_nvme names {", ".join(folders)}: leave one of them out')


def folders_for(home: str, own: list[str], of_state: list[str]) -> list[str]:
    """Returns the folders in which it may be; none: it is in host memory. Raises where there are
    none and it must be there."""
    if home == "host":
        return []
    folders = own or of_state
    if home == "nvme" and not folders:
        raise InvalidArgumentError(f'frozen is "nvme", and no drive is named: {_REMEDY}')
    return [os.path.join(folder, "frozen") for folder in folders]


class FrozenHome:
    """What a program has said of it, of one model."""

    def __init__(self, home: str, folders: Paths) -> None:
        self._home = home
        self._folders = existing_folders(folders, "frozen_nvme")
        check_home(home, self._folders)

    def check_alone(self) -> None:
        """Raises where it must be on disk: it is the copy of several processes."""
        if self._home == "nvme":
            raise NotSupportedError(
                'frozen is "nvme", and ranks stream the model from one copy in host memory '
                '(process_group): leave frozen out, or give "host"')

    def folders(self, options: Any, parameters: list[Registered],
                frozen: list[Registered]) -> list[str]:
        """Returns the folders where it goes; none: it stays in host memory. `options` are those of
        the trainer, without folders for it."""
        if all(entry.unit is None for entry in frozen):
            return []
        folders = folders_for(self._home, self._folders, options.nvme)
        if self._home == "nvme" or not folders:
            return folders
        there = native.Forecast(options, [(entry.name, 0, entry.parameter.numel(), entry.unit)
                                          for entry in parameters],
                                [(entry.name, entry.parameter.nbytes, entry.unit)
                                 for entry in frozen])
        return [] if there.refusal(0) is None else folders


class OnDisk:
    """The frozen parameters of a trainer that are on disk, by their numbers among its entries, the
    first `trained` of which are trained."""

    def __init__(self, entries: list[Registered], trained: int, folders: list[str]) -> None:
        self._trained = trained
        self._units = {index: entry.unit for index, entry in enumerate(entries)
                       if folders and index >= trained and entry.unit is not None}
        self._new = set(self._units)  # in host memory, and not there yet

    def has(self, index: int) -> bool:
        """Whether a parameter is one of them."""
        return index in self._units

    def note_written(self, index: int) -> None:
        """Notes that the program has written one."""
        if index in self._units:
            self._new.add(index)

    def write(self, trainer: Any, bytes_of: Callable[[int], torch.Tensor]) -> Iterator[list[int]]:
        """Writes those that are new, and returns the numbers of those of each unit."""
        for unit in sorted({self._units[index] for index in self._new}):
            numbers = [index for index in sorted(self._new) if self._units[index] == unit]
            trainer.write_frozen([(index - self._trained, bytes_of(index)) for index in numbers])
            self._new.difference_update(numbers)
            yield numbers
