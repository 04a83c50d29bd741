"""Paths that a program gives: the one place that reads them."""
from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any, Union

from spillway.errors import InvalidArgumentError

Path = Union[str, os.PathLike[str]]
Paths = Union[Path, Iterable[Path]]

_REMEDY = 'give a str or a pathlib.Path, such as "/disk/state"'


def path_of(given: Any, what: str) -> str:
    """Returns an absolute path, with `~` expanded; `what` names the argument in errors.

    A later os.chdir does not change what it refers to.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"{what} is {given!r}, of type {type(given).__name__}; {_REMEDY}")
    path = os.fspath(given)
    if not isinstance(path, str):
        raise InvalidArgumentError(f"{what} is a path of bytes, {path!r}; {_REMEDY}")
    if not path:
        raise InvalidArgumentError(f"{what} is an empty path; {_REMEDY}")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{what} is {path!r}, which is no text of UTF-8; rename the folder") from None
    if "\0" in path:
        raise InvalidArgumentError(f"{what} is {path!r}, which has a zero byte; {_REMEDY}")
    return os.path.abspath(os.path.expanduser(path))


def folders_of(given: Any, what: str) -> list[str]:
    """Returns the folders that an argument names: one path, or several; none for None."""
    if given is None:
        return []
    if isinstance(given, (str, bytes, bytearray, os.PathLike)) or not isinstance(given, Iterable):
        folders = [path_of(given, what)]
    else:
        folders = [path_of(each, f"{what}[{number}]") for number, each in enumerate(given)]
    real = [os.path.realpath(folder) for folder in folders]
    for number, folder in enumerate(folders):
        if (first := real.index(real[number])) < number:
            name = folder if folder == folders[first] else f"{folder} and {folders[first]}, one,"
            raise InvalidArgumentError(f"{what} names {name} twice; name each folder once")
    return folders


def existing_folders(given: Any, what: str) -> list[str]:
    """Does the same for folders that must be there: a drive that is not mounted is no empty one."""
    folders = folders_of(given, what)
    for folder in folders:
        try:
            there = stat.S_ISDIR(os.stat(folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            there = False
        except OSError as error:
            raise InvalidArgumentError(f"{what} {folder} cannot be looked at ({error.strerror}); "
                                       "name a directory that is there") from None
        if not there:
            raise InvalidArgumentError(
                f"{what} {folder} is not a directory; mount its drive or make it")
    return folders


def name_or_path(given: Any, what: str) -> str:
    """Returns a name as it is, and a path as `path_of`; empty for None. A text is a path where it
    begins with `~`: elsewhere both are looked for."""
    if given is None:
        return ""
    if isinstance(given, str) and given and not given.startswith("~"):
        return given
    return path_of(given, what)
