"""Folders that are written whole: beside the one that they replace, which stays until then."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from spillway.errors import BusyError, InvalidArgumentError, IoError

#: Files by which a checkpoint of an optimizer is known, and what is part of it.
MARKS = ("parameters.json", "state-0.swap", "shard0/parameters.json")
OURS = r"parameters\.json|groups\.json|state-\d+\.swap|shard\d+"

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _synchronize(path: pathlib.Path) -> None:
    """Makes a file, or the entries of a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_others(old: pathlib.Path, new: pathlib.Path, ours: re.Pattern[str]) -> None:
    """Links what the program has put into a folder of ours into the one that replaces it."""
    for entry in old.iterdir():
        if ours.fullmatch(entry.name) or (new / entry.name).exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, new / entry.name, symlinks=True, copy_function=os.link)
        else:
            os.link(entry, new / entry.name, follow_symlinks=False)


def _exchange(one: pathlib.Path, other: pathlib.Path) -> None:
    """Gives each of two folders the other's name, at once where the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other),
                      _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(other))
    aside = one.with_name("old")
    other.rename(aside)
    one.rename(other)


@contextlib.contextmanager
def _locked(staging: pathlib.Path, target: pathlib.Path) -> Iterator[None]:
    """Makes the folder `staging`, empty and this writer's alone, and removes it in the end."""
    staging.mkdir(exist_ok=True)
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), staging.lstat()):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            raise BusyError(f"{target} is being written by another process; wait for it, or save "
                            "into another folder") from None
        for entry in staging.iterdir():  # of a writer that was killed
            shutil.rmtree(entry)
        try:
            yield
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(descriptor)


def staging_of(path: str) -> str:
    """Returns the folder that `written_whole` gives for a path, for others who fill it too."""
    target = pathlib.Path(path)
    return str(target.with_name(f".{target.name}.partial") / "new")


@contextlib.contextmanager
def written_whole(path: str, marks: tuple[str, ...], ours: str) -> Iterator[str]:
    """Gives the path of a folder to make and fill, which then has the place and the name of `path`.

    A folder that is there stays until the new one is whole and durable. It is replaced if it is
    empty or has one of the files `marks`, and refused otherwise. What it has beside names that
    match `ours` stays. After an error, or where the process is killed, the old one is as it was.
    """
    target = pathlib.Path(path)
    if os.path.lexists(target) and not (target.is_dir() and (
            not any(target.iterdir()) or any(any(target.glob(mark)) for mark in marks))):
        raise InvalidArgumentError(f"{target} is there already and is no checkpoint; save into "
                                   "another folder, or remove it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = pathlib.Path(staging_of(path))
        with _locked(new.parent, target):
            yield str(new)
            if target.exists():
                _keep_others(target, new, re.compile(ours))
            for folder, _, files in os.walk(new):
                for each in (*(os.path.join(folder, name) for name in files), folder):
                    if not os.path.islink(each):
                        _synchronize(pathlib.Path(each))
            if target.exists():
                _exchange(new, target)
            else:
                new.rename(target)
            _synchronize(target.parent)
    except OSError as error:
        if isinstance(error, IoError):
            raise
        raise IoError(f"{target} cannot be written ({error.strerror or error}): see to the folder "
                      "or the disk, or save elsewhere; what was saved there before is as it was",
                      error.errno or 0) from error
