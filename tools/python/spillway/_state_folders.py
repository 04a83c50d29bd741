"""The folders in which optimizers of this process keep state: each has folders of its own."""
from __future__ import annotations

import os
import weakref
from typing import Any

_in_use: set[str] = set()


def own_folders(folders: list[str], owner: Any = None) -> list[str]:
    """Returns these folders, or, while another optimizer of this process is alive in one of them,
    folders in them: a cell of a notebook makes the new optimizer before the old one goes. They are
    free again when `owner` is gone; without one, after `give_back`."""
    number = 1
    own = folders
    while _in_use.intersection(own):
        number += 1
        own = [os.path.join(folder, f"optimizer{number}") for folder in folders]
    _in_use.update(own)
    if owner is not None:
        weakref.finalize(owner, give_back, own).atexit = False
    return own


def give_back(folders: list[str]) -> None:
    """Makes folders free for the next optimizer."""
    _in_use.difference_update(folders)
