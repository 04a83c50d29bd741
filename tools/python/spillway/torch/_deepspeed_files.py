"""Files of a checkpoint that DeepSpeed's engine has written with ZeRO 1, 2 or 3, and what is where
in them. Their tensors stay in the files until they are used, one parameter after the other."""
from __future__ import annotations

import contextlib
import copy
import functools
import glob
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spillway.errors import CorruptDataError, Error, InvalidArgumentError, NotSupportedError
from spillway.torch._plain_files import read

_MODEL = "mp_rank_00_model_states.pt"
REMEDY = "give engine.load_checkpoint load_optimizer_states=False, with which moments begin again"

#: What of the model's file is DeepSpeed's; the rest is the program's `client_state`.
_OWN = frozenset((
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params "
    "frozen_param_fragments lr_scheduler data_sampler random_ltd sparse_tensor_module_names "
    "skipped_steps global_steps global_samples dp_world_size mp_world_size "
    "checkpoint_parallel_dimensions ds_config ds_version").split())


def is_of_deepspeed(folder: str) -> bool:
    """Whether a folder is a checkpoint of DeepSpeed's engine, of any stage."""
    return bool(glob.glob(os.path.join(glob.escape(folder), f"*{_MODEL}")))


class Cut:
    """Values of a parameter that lie in the files of several ranks."""

    def __init__(self, pieces: list[torch.Tensor], shape: torch.Size) -> None:
        self._pieces = [piece for piece in pieces if piece.numel()] or pieces[:1]
        self.shape = shape
        self.dtype = pieces[0].dtype

    def contiguous(self) -> torch.Tensor:
        """Returns them as one tensor: a view of a file where one has all of them."""
        pieces = self._pieces
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(self.shape)


Values = Mapping[str, torch.Tensor | Cut]  #: a model's, by name


class Saved:
    """A checkpoint's files. With ZeRO 1 and 2 ranks have parts of a group of parameters, which is
    one flat tensor, and the first has the model; with ZeRO 3 they have a part of each parameter."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.is_cut = not os.path.exists(os.path.join(folder, _MODEL))  # with ZeRO 3
        first = f"zero_pp_rank_0_{_MODEL}" if self.is_cut else _MODEL
        self.model = read(os.path.join(folder, first), "module", "lr_scheduler", "param_shapes",
                          "global_steps", "skipped_steps", "global_samples", "dp_world_size",
                          "mp_world_size")
        if self.model["mp_world_size"] != 1:
            raise NotSupportedError(
                f"{folder} has a model that is cut over {self.model['mp_world_size']} ranks: save "
                "it from one with whole parameters")
        with self.layout():
            self.ranks = _whole_number(self.model["dp_world_size"], 1)
            self.steps = (_whole_number(self.model["global_steps"])
                          - _whole_number(self.model["skipped_steps"], 0))
            _whole_number(self.model["global_samples"])
            self.shapes = [_shapes(group) for group in self.model["param_shapes"] or ()]

    @contextlib.contextmanager
    def layout(self) -> Iterator[None]:
        """Surrounds what takes files apart: one of another layout lacks something."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            if isinstance(error, Error):
                raise
            raise CorruptDataError(
                f"{self.folder} has files of another layout than DeepSpeed's with ZeRO 1, 2 or 3 "
                f"({error!r}): load another tag") from error

    def client_state(self) -> dict[str, Any]:
        """Returns what the program has saved beside the engine, out of the file."""
        return copy.deepcopy({name: value for name, value in self.model.items()
                              if name not in _OWN})

    def _of_ranks(self, ending: str) -> Iterator[str]:
        """The paths of the files of all ranks that end so."""
        for rank in range(self.ranks):
            name = f"zero_pp_rank_{rank}_mp_rank_00_{ending}.pt"
            found = glob.glob(os.path.join(glob.escape(self.folder), f"*{name}"))
            if len(found) != 1:
                has = f"{len(found)} files of the name {name}" if found else f"no {name}"
                raise InvalidArgumentError(
                    f"{self.folder} has {has}, and {self.ranks} ranks have saved: bring the file "
                    "of each of them there, and no other" + (
                        "" if self.is_cut else f", or {REMEDY}"))
            yield found[0]

    @functools.cached_property
    def parts(self) -> list[tuple[list[torch.Tensor], dict[str, Any]]]:
        """Of each rank, the masters of the groups, and the state dict of its optimizer."""
        found = []
        names = (("fp32_flat_groups", "optimizer_state_dict") if self.is_cut else
                 ("single_partition_of_fp32_groups", "base_optimizer_state"))
        for path in self._of_ranks("optim_states"):
            part = read(path, "optimizer_state_dict")["optimizer_state_dict"]
            with self.layout():
                if not all(name in part for name in names) or not isinstance(
                        part[names[1]], dict) or "ds_zero_partition_groups" in part:
                    raise NotSupportedError(
                        f"{self.folder} is not of ZeRO 1, 2 or 3, or it is elastic, or experts are "
                        f"cut over ranks: {REMEDY}")
                if self.is_cut and part["partition_count"] != self.ranks:
                    raise CorruptDataError(
                        f"{path} is of {part['partition_count']} ranks, and the model's file of "
                        f"{self.ranks}: load another tag")
                if any(map(any, part.get("param_alignment_paddings") or ())):
                    raise NotSupportedError(f"{path} has parameters that are padded: {REMEDY}")
                found.append(tuple(part[name] for name in names))
        return found

    def cut(self, group: int, flat: list[torch.Tensor], *, padded: bool = False) -> dict[str, Cut]:
        """Returns the values of a group's parameters, of which these are the ranks' parts. The last
        rank may have more of them if they are `padded`."""
        for each in flat:
            if each.dim() != 1 or not each.is_floating_point():
                raise TypeError(f"{tuple(each.shape)} of {each.dtype} where values are expected")
        shapes = self.shapes[group]
        count = sum(self._length(shape) for shape in shapes.values())
        lengths = [each.numel() for each in flat]
        found = sum(lengths)
        if any(each != count for each in lengths) if self.is_cut else (
                found < count or not padded and found != count):
            raise NotSupportedError(
                f"{self.folder} has {' and '.join(map(str, lengths))} values of the ranks for the "
                f"{count} of group {group}{' that each has' if self.is_cut else ''}, whose "
                f"parameters are padded, on disk or of other files: {REMEDY}")
        cuts, at = {}, 0
        for name, shape in shapes.items():
            cuts[name] = Cut(self._pieces(flat, at, shape), shape)
            at += self._length(shape)
        return cuts

    def _length(self, shape: torch.Size) -> int:
        """How many values of a parameter lie one after the other."""
        return self._part(shape) if self.is_cut else shape.numel()

    def _part(self, shape: torch.Size) -> int:
        """How much of a parameter each rank has; the end of the last one's is padding."""
        return -(-shape.numel() // self.ranks)

    def _pieces(self, flat: list[torch.Tensor], at: int, shape: torch.Size) -> list[torch.Tensor]:
        if not self.is_cut:
            return _ranges(flat, at, at + shape.numel())
        part = self._part(shape)
        return [each[at:at + max(0, min(part, shape.numel() - rank * part))]
                for rank, each in enumerate(flat)]

    def masters(self) -> dict[str, Cut]:
        """Returns the fp32 values of the parameters that are trained."""
        masters: dict[str, Cut] = {}
        with self.layout():
            for group in range(len(self.shapes)):
                masters |= self.cut(group, [part[group] for part, _ in self.parts])
        return masters

    def values(self) -> Values:
        """Returns what a state dict of the model has. With ZeRO 3 trained parameters are fp32."""
        return self.whole() if self.is_cut else self.model["module"]

    def whole(self) -> Values:
        """Returns that with the masters of trained parameters, whatever the stage."""
        with self.layout():
            found = {**self.model["module"], **self.frozen(), **self.masters()}
            shared = self.model.get("shared_params") or {}
            return {name: found.get(shared.get(name, name), value)
                    for name, value in found.items()}

    def frozen(self) -> Values:
        """Returns the parameters that are not trained, where the files have them apart."""
        shapes = _shapes(self.model.get("frozen_param_shapes") or {})
        if not self.is_cut:
            return dict(self.model.get("frozen_param_fragments") or {})
        frozen: dict[str, Cut] = {}
        models = [read(path, "frozen_param_fragments")["frozen_param_fragments"]
                  for path in self._of_ranks("model_states")] if shapes else []
        for name, shape in shapes.items():
            pieces = [each[name] for each in models]
            if [(each.dim(), each.numel()) for each in pieces] != [
                    (1, self._part(shape))] * self.ranks or not pieces[0].is_floating_point():
                raise NotSupportedError(
                    f"{self.folder} has parts of {name} that do not make {tuple(shape)}, as of "
                    "quantized weights: save it with plain ones")
            frozen[name] = Cut(self._pieces(pieces, 0, shape), shape)
        return frozen


def _whole_number(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"{value!r} where a number is expected")
    return value


def _shapes(group: Any) -> dict[str, torch.Size]:
    """Returns a group's shapes by name. Raises TypeError for what is none."""
    for name, shape in group.items():
        if type(name) is not str or type(shape) is not torch.Size or any(
                size < 0 for size in shape):
            raise TypeError(f"{shape!r} where the shape of {name!r} is expected")
    return dict(group)


def _ranges(parts: list[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
    """Returns a range of a flat tensor, of which these are the parts, as views of them."""
    lengths = [part.numel() for part in parts]
    begins = itertools.accumulate(lengths[:-1], initial=0)
    return [part[max(start - begin, 0):max(stop - begin, 0)]
            for part, begin in zip(parts, begins, strict=True)]
