"""Values of a model that was built on `meta`, from a checkpoint that may be larger than memory."""
from __future__ import annotations

import re
from typing import NamedTuple

import torch

from spillway._paths import Path, Paths, existing_folders, path_of
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._mapped_files import TYPES, Mappings, Room, Stored, tensors_of
from spillway.torch._model_tensors import Wanted, make_buffers, stored_names, wanted_of

__all__ = ["load_checkpoint"]

_CONVERTED = ("F64", "F32", "F16", "BF16")
_NAMED = 20  #: as many names as an error has of each sort


def load_checkpoint(model: torch.nn.Module, checkpoint: Path, nvme: Paths = ()) -> torch.nn.Module:
    """Gives `model`, which was built on torch's `meta` device, the values of a checkpoint, and
    returns it. The values are never in memory as a whole.

    `checkpoint` is a folder with `model.safetensors`, or with shards and their index, or one file
    of safetensors. Parameters and buffers become tensors on the CPU that lie in these files: they
    are read where they are used, and an optimizer of `spillway.torch` takes them to where they are
    kept one after the other. So the files must stay as they are until then. What a program writes
    to the tensors stays in its process.

    What the model has in another floating type is converted, one tensor after the other, in a file
    without a name in the first of the folders `nvme`; without it, in host memory.

    Names may have what transformers puts before those of a model's body, or lack it, and those of
    the model may have what PEFT adds. Tensors that are on the CPU already take the values that the
    checkpoint has of them, and stay as they are where it has none, such as adapters. Buffers that
    are in no checkpoint are made as transformers makes them. Raises InvalidArgumentError, and has
    changed no parameter, for names that are missing or in excess and for other shapes and types;
    all of them are named.
    """
    folders = existing_folders(nvme, "nvme")
    path = path_of(checkpoint, "checkpoint")
    stored = tensors_of(path)
    if callable(getattr(type(model), "tie_weights", None)):
        model.tie_weights()  # which init_empty_weights undoes
    _fill(_matched(model, stored, path), folders[0] if folders else None)
    return model


class _Found(NamedTuple):
    wanted: Wanted
    stored: Stored

    def converts(self) -> bool:
        """Whether the model has it in another type."""
        return TYPES[self.stored.kind] != self.wanted.tensor.dtype


class _Matched:
    """What a checkpoint has of a model."""

    def __init__(self, model: torch.nn.Module, wanted: list[Wanted],
                 stored: dict[str, Stored]) -> None:
        prefix = getattr(model, "base_model_prefix", "")
        self.found: list[_Found] = []
        self._used: set[str] = set()
        self._differ: list[str] = []  # of tensors that the model ties
        self._ignored = [re.compile(pattern) for pattern in
                         getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
        mappings = Mappings()
        for each in wanted:
            if not each.is_stored:
                continue
            names = [found for name in each.names
                     if (found := next((candidate for candidate in stored_names(name, prefix)
                                        if candidate in stored), None)) is not None]
            self._used.update(names)
            for other in sorted(set(names[1:]) - {names[0]} if names else ()):
                if not _are_equal(mappings, stored[names[0]], stored[other]):
                    self._differ.append(f"{names[0]} and {other}")
            if names:
                self.found.append(_Found(each, stored[names[0]]))

    def problems(self, wanted: list[Wanted], stored: dict[str, Stored]) -> list[str]:
        """Returns why the checkpoint does not fit, for people."""
        matched = {id(each.wanted) for each in self.found}
        derived = {name.rpartition(".")[2] for each in wanted if not each.is_stored
                   for name in each.names}  # which old checkpoints have
        sorts = {
            "missing": [each.names[0] for each in wanted if each.is_stored
                        and each.tensor.is_meta and id(each) not in matched],
            "not of the model": [name for name in stored if name not in self._used
                                 and name.rpartition(".")[2] not in derived
                                 and not any(each.search(name) for each in self._ignored)],
            "of another shape": [
                f"{each.wanted.names[0]}, {list(each.stored.shape)} and not "
                f"{list(each.wanted.tensor.shape)}" for each in self.found
                if each.stored.shape != each.wanted.tensor.shape],
            "of a type that is not converted": [
                f"{each.wanted.names[0]}, {each.stored.kind} and not {each.wanted.tensor.dtype}"
                for each in self.found if not _is_convertible(each)],
            "tied in the model and different": self._differ}
        return [f"{sort}: {_listed(names)}" for sort, names in sorts.items() if names]


def _matched(model: torch.nn.Module, stored: dict[str, Stored], path: str) -> list[_Found]:
    """Returns what a checkpoint has of a model, or raises where that is not all, or is more."""
    wanted = wanted_of(model)
    for each in wanted:
        if each.tensor.is_meta and not each.is_plain():
            raise NotSupportedError(
                f"{each.names[0]} is a {type(each.tensor).__name__} on meta, whose values a "
                "quantizer makes of those of a checkpoint: load the model with from_pretrained")
    matched = _Matched(model, wanted, stored)
    problems = matched.problems(wanted, stored)
    if buffers := make_buffers(model):
        problems.append("buffers that are on meta and in no checkpoint, and that only the program "
                        "can make (or accelerate's init_empty_weights, which leaves buffers on "
                        f"the CPU): {_listed(buffers)}")
    if problems:
        raise InvalidArgumentError(f"{path} does not fit the model: {'; '.join(problems)}")
    return matched.found


def _are_equal(mappings: Mappings, one: Stored, other: Stored) -> bool:
    if (one.kind, one.shape) != (other.kind, other.shape) or one.kind not in TYPES:
        return False
    return torch.equal(mappings.tensor(one), mappings.tensor(other))


def _is_convertible(found: _Found) -> bool:
    floats = [TYPES[kind] for kind in _CONVERTED]
    return found.stored.kind in TYPES and (not found.converts() or (
        found.stored.kind in _CONVERTED and found.wanted.tensor.dtype in floats))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@torch.no_grad()
def _fill(found: list[_Found], folder: str | None) -> None:
    """Puts the values in their places."""
    mappings = Mappings()
    room = Room(folder, [each.wanted.tensor for each in found
                         if each.converts() and each.wanted.tensor.is_meta])
    for wanted, stored in found:
        values = mappings.tensor(stored)
        if not wanted.tensor.is_meta:
            wanted.tensor.copy_(values)
            continue
        if values.dtype != wanted.tensor.dtype:
            values = room.tensor(wanted.tensor).copy_(values)
        wanted.replace(values)
