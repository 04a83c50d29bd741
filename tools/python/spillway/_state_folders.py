"""The folders in which optimizers of this process keep state: each has folders of its own."""
from __future__ import annotations

import os
import re
import weakref
from typing import Any

from spillway._load import native
from spillway.errors import BusyError, CorruptDataError, InvalidArgumentError

_in_use: set[str] = set()  # without symbolic links
#: Folders that optimizers make in those that a program names.
_MADE = re.compile(r"(optimizer|shard|rank)\d+|frozen")


def _remove_left_over(folders: list[str]) -> None:
    """Removes the state that optimizers of killed processes have left in folders of their own. That
    in the folders themselves is replaced by whoever comes next."""
    patience_ms = 100  # a killed process keeps its locks until its writes are over
    for path, below, _ in os.walk(folders[0]):
        below[:] = filter(_MADE.fullmatch, below)
        for name in below:
            place = os.path.relpath(os.path.join(path, name), folders[0])
            try:
                native.remove_uncommitted([os.path.join(folder, place) for folder in folders],
                                          patience_ms)
            except BusyError:
                patience_ms = 0  # whoever was killed is gone by now
            except (CorruptDataError, InvalidArgumentError):
                pass  # it is no such state


def own_folders(folders: list[str], owner: Any = None) -> list[str]:
    """Returns these folders, or, while another optimizer of this process is alive in one of them,
    folders in them: a cell of a notebook makes the new optimizer before the old one goes. They are
    free again when `owner` is gone; without one, after `give_back`."""
    if folders:
        _remove_left_over(folders)
    number = 1
    own = folders
    while _in_use.intersection(map(os.path.realpath, own)):
        number += 1
        own = [os.path.join(folder, f"optimizer{number}") for folder in folders]
    _in_use.update(map(os.path.realpath, own))
    if owner is not None:
        weakref.finalize(owner, give_back, own).atexit = False
    return own


def give_back(folders: list[str]) -> None:
    """Makes folders free for the next optimizer."""
    _in_use.difference_update(map(os.path.realpath, folders))
