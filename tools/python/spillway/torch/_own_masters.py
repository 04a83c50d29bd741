"""Masters of a checkpoint of the engine, which are read out of its optimizer's folder without the
model: `names.json` beside it says which parameter has which state."""
from __future__ import annotations

import functools
import glob
import json
import os
import pathlib
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from spillway._arguments import trainer_options
from spillway._load import native
from spillway.errors import (CorruptDataError, Error, InvalidArgumentError, IoError,
                             NotSupportedError)
from spillway.torch._registered import DTYPES
from spillway.torch._shard import in_memory

NAMES = "names.json"  #: of a checkpoint's folder: by parameter, the name of its state
_DESCRIPTION = "parameters.json"
_PIECE = re.compile(r"(.*)\[(\d+):(\d+)\]")  # of a rank
_ORDER = re.compile(r"(.*) in memory order \(([\d, ]+)\)")
_TYPES = {text: dtype for dtype, text in DTYPES.items()}


class Room:
    """A folder for copies of state, within another. It is made for the first one, and goes with
    its last user."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @functools.cached_property
    def path(self) -> str:
        """Its path. Raises IoError where it cannot be made."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            path = tempfile.mkdtemp(prefix=".state-", dir=self._folder)
        except OSError as error:
            raise IoError(
                f"{self._folder} can have no copy of the state, which is read from one "
                f"({error.strerror}): let the program write there, or call "
                "convert_zero_checkpoint_to_fp32_state_dict, which makes it in output_dir",
                error.errno or 0) from error
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path


class _Part:
    """A folder of state, which is copied into a trainer of its own when it is first read."""

    def __init__(self, folder: str, room: Room) -> None:
        self._folder, self._room, self._trainer = folder, room, None
        path = pathlib.Path(folder, _DESCRIPTION)
        try:
            self._saved = json.loads(path.read_text(encoding="utf-8"))
            self.dtype = _TYPES[self._saved["dtype"]]
            self.parameters = [(str(each["name"]), int(each["elements"]), int(each["group"]))
                               for each in self._saved["parameters"]]
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptDataError(f"{path} is damaged ({error!r}): load another tag") from error

    def read(self, number: int) -> torch.Tensor:
        """Returns the masters of a parameter."""
        if self._trainer is None:
            self._trainer = self._made()
        values = in_memory(self.parameters[number][1])
        self._trainer.read_state(number, values, None, None)
        return values

    def _made(self) -> Any:
        """Returns a trainer that has loaded the folder."""
        try:
            options = trainer_options({
                "state_format": self._saved["state_format"], "gradients_per_step": 1,
                "nvme": [tempfile.mkdtemp(dir=self._room.path)]}, self._saved["dtype"])
            options.groups = [native.Group() for _ in self._saved["optimizers"]]
            for group, kind in zip(options.groups, self._saved["optimizers"], strict=True):
                group.optimizer = kind
            # What it is made with, which the state then replaces, takes no memory for each.
            zeros = torch.zeros(max(elements for _, elements, _ in self.parameters),
                                dtype=self.dtype, device="cpu")
            trainer = native.Trainer(options, [(name, group, zeros[:elements], None)
                                               for name, elements, group in self.parameters])
            trainer.load(self._folder)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, Error) and not isinstance(error, InvalidArgumentError):
                raise  # not of the folder, but of this machine
            raise CorruptDataError(f"{self._folder} is not a whole folder of state ({error}): load "
                                   "another tag") from error
        return trainer


class Master:
    """Masters of a parameter. Ranks may have pieces of them: (start, stop, part, number)."""

    dtype = torch.float32

    def __init__(self, pieces: list[tuple[int, int, _Part, int]], shape: torch.Size,
                 order: tuple[int, ...] | None) -> None:
        self._pieces, self.shape, self._order = pieces, shape, order

    def contiguous(self) -> torch.Tensor:
        """Returns them as one tensor."""
        flat = torch.cat([part.read(number) for _, _, part, number in self._pieces])
        if self._order is None:
            return flat.view(self.shape)
        inside = flat.view([self.shape[dim] for dim in self._order])
        return inside.permute([self._order.index(dim) for dim in range(len(self._order))]
                              ).contiguous()


def write_names(folder: str, module: torch.nn.Module, optimizer: Any) -> None:
    """Writes which parameter of a module has which state, and which are frozen."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    document = {"state": {name: optimizer.name_of_state(each) for name, each in parameters.items()
                          if optimizer.trains(each)},
                "frozen": [name for name, each in parameters.items() if not each.requires_grad]}
    pathlib.Path(folder, NAMES).write_text(json.dumps(document), encoding="utf-8")


def read_names(folder: str, values: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Returns that. Checkpoints of before lack it, where states may have the parameters' names."""
    path = pathlib.Path(folder, NAMES)
    if not path.exists():
        return {name: name for name in values}, []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        frozen = list(document["frozen"])
        left_out = set(frozen) - values.keys()  # with exclude_frozen_parameters
        return {name: state for name, state in dict(document["state"]).items()
                if name not in left_out}, frozen
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{path} is damaged ({error!r}): load another tag") from error


def masters_of(folder: str, names: Mapping[str, str], values: Mapping[str, Any],
               room: Room) -> dict[str, Master]:
    """Returns the masters of the parameters whose values have 16 bits: those of fp32 are their own
    masters. `folder` is of an optimizer, and state is copied into `room` when it is first read.
    Raises NotSupportedError for a model of 16 bits whose values lack names of its parameters."""
    pieces: dict[str, list[tuple[int, int, _Part, int]]] = defaultdict(list)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", _DESCRIPTION),
                                 recursive=True)):
        part = _Part(os.path.dirname(path), room)
        for number, (name, elements, _) in enumerate(part.parameters):
            found = _PIECE.fullmatch(name)
            start, stop = (int(found[2]), int(found[3])) if found else (0, elements)
            if stop - start != elements:
                raise CorruptDataError(f"{path} has {elements} values of {name}: load another tag")
            pieces[found[1] if found else name].append((start, stop, part, number))
    if (lost := sorted(names.keys() - values.keys())) and any(
            part.dtype != torch.float32 for found in pieces.values() for _, _, part, _ in found):
        raise NotSupportedError(
            f"{folder} has state of {lost[0]}, and the model's file has no such name (a hook of "
            "state_dict renames it): load the checkpoint into its engine, and read "
            "optimizer.state_dict()")
    made: dict[str, Master] = {}
    masters = {}
    for name, state in names.items():
        if name in values and values[name].dtype in (torch.bfloat16, torch.float16):
            if state not in made:
                made[state] = _master(folder, name, state, values[name].shape, pieces)
            masters[name] = made[state]
    return masters


def _master(folder: str, name: str, state: str, shape: torch.Size,
            pieces: Mapping[str, list[tuple[int, int, _Part, int]]]) -> Master:
    ordered = {found[1]: found for each in pieces if (found := _ORDER.fullmatch(each))}
    order = None
    if state in ordered:
        order = tuple(int(dim) for dim in ordered[state][2].split(",") if dim.strip())
        state = ordered[state][0]
    mine = sorted(pieces.get(state, ()), key=lambda piece: piece[0])
    if not mine:
        raise CorruptDataError(
            f"{folder} has no state of {name}, by the name {state!r}: bring the folders of all "
            f"ranks there. Where a version of before has saved it, without {NAMES}, load it into "
            "its engine and save it again")
    begins, ends = [each[0] for each in mine], [each[1] for each in mine]
    if begins != [0, *ends[:-1]] or ends[-1] != shape.numel() or (
            order is not None and sorted(order) != list(range(len(shape)))):
        raise CorruptDataError(
            f"{folder} has the values {', '.join(f'{a} to {b}' for a, b in zip(begins, ends))} of "
            f"{name}, which has {shape.numel()}: load another tag, or bring the folders of all "
            "ranks there")
    return Master(mine, shape, order)
