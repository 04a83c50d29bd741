"""Files of torch that others have written: their tensors and plain values, and nothing that could
run code or change an object of this process."""
from __future__ import annotations

import collections
import pickle
import struct
import types
from collections.abc import Callable
from typing import Any

import torch

from spillway.errors import CorruptDataError

#: What a damaged file raises: the unpickler, the reader of the archive, and tensors out of bounds.
_DAMAGE = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError,
           TypeError, ValueError, pickle.UnpicklingError, struct.error)


class _Inert:
    """Stands for an object of a class whose code does not run here."""


class _Maker:
    """What a file has in place of a class or a function of this process."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    """Returns a tensor of these elements; what else was one's, such as hooks, is left out."""
    return torch._utils._rebuild_tensor(storage, offset, size, stride)


def _refused(what: str) -> pickle.UnpicklingError:
    return pickle.UnpicklingError(f"it has a {what}")


def _with_attributes(maker: Any, _kind: Any, arguments: Any, *_: Any) -> Any:
    """Returns what a tensor is made of whose attributes were saved too; they are left out."""
    if type(maker) is not _Maker or maker.make is not _tensor:
        raise _refused(f"tensor of a {type(maker).__name__}")
    return _tensor(*arguments)


_MAKES: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _with_attributes,
    ("torch", "Tensor"): _Inert,
    ("torch", "Size"): lambda sizes=(): torch.Size(sizes),
    ("collections", "OrderedDict"): lambda: collections.OrderedDict()}


class _Operations(dict[int, Any]):
    """What an unpickler does, by operation."""

    def __missing__(self, operation: int) -> Any:
        raise _refused(f"operation {bytes([operation])!r} of pickle")


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Takes the operations that torch.save writes, each only on what the file itself has made."""

    #: Those that make a plain value, or move values about.
    dispatch = _Operations(
        (operation, pickle._Unpickler.dispatch[operation])  # type: ignore[attr-defined]
        for operation in b"".join((
            pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.BINPERSID, pickle.NONE,
            pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2,
            pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.EMPTY_TUPLE, pickle.TUPLE,
            pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.EMPTY_DICT,
            pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT)))

    def find_class(self, module: str, name: str) -> _Maker:
        if module.startswith("deepspeed."):
            return _Maker(lambda *_: _Inert())
        if (module, name) not in _MAKES:
            raise _refused(f"{module}.{name}")
        return _Maker(_MAKES[module, name])

    def _make(self) -> None:
        arguments, maker = self.stack.pop(), self.stack.pop()
        if type(maker) is not _Maker:
            raise _refused(f"call of a {type(maker).__name__}")
        self.append(maker.make(*arguments))

    def _build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is collections.OrderedDict:  # of a module, with the versions of its parts
            vars(made).update(_metadata=state["_metadata"])
        elif type(made) is not _Inert:
            raise _refused(f"state for a {type(made).__name__}")

    def _top(self, *kinds: type) -> Any:
        """Returns the container that is changed next."""
        if type(self.stack[-1]) not in kinds:
            raise _refused(f"change of a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _append(self) -> None:
        value = self.stack.pop()
        self._top(list).append(value)

    def _extend(self) -> None:
        values = self.pop_mark()
        self._top(list).extend(values)

    def _set(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top(dict, collections.OrderedDict)[key] = value

    def _update(self) -> None:
        values = self.pop_mark()
        self._top(dict, collections.OrderedDict).update(zip(values[::2], values[1::2],
                                                            strict=True))

    dispatch.update({
        pickle.REDUCE[0]: _make, pickle.NEWOBJ[0]: _make, pickle.BUILD[0]: _build,
        pickle.APPEND[0]: _append, pickle.APPENDS[0]: _extend, pickle.SETITEM[0]: _set,
        pickle.SETITEMS[0]: _update})


def read(path: str, *keys: str) -> dict[str, Any]:
    """Returns the dict of a file, which has these keys. Tensors stay in the file until they are
    used. Raises CorruptDataError for a file that is damaged or has more than plain values."""
    module = types.ModuleType("plain")
    module.Unpickler = _Unpickler  # type: ignore[attr-defined]  # torch finds it there
    try:
        with open(path, "rb"):  # torch does not tell why it cannot
            records = torch._C.PyTorchFileReader(path).get_all_records()
        if "constants.pkl" in records:  # which torch.load would run
            raise _refused("program of TorchScript")
        saved = torch.load(path, map_location="cpu", pickle_module=module, weights_only=False,
                           mmap=True)
        if type(saved) is not dict or not saved.keys() >= set(keys):
            raise _refused(f"{type(saved).__name__} without {' or '.join(keys)}")
    except _DAMAGE as error:
        raise CorruptDataError(f"{path} is damaged, or has more than tensors, numbers and texts "
                               f"({error}): load another tag, or give engine.load_checkpoint "
                               "load_module_only=True where the other file is whole") from error
    return saved
