"""Checkpoints that DeepSpeed's engine has written with ZeRO 1 or 2: the model, masters, moments and
counts go into an engine, of any number of ranks."""
from __future__ import annotations

import contextlib
import copy
import glob
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spillway.errors import CorruptDataError, InvalidArgumentError, NotSupportedError
from spillway.torch._plain_files import read

_MODEL = "mp_rank_00_model_states.pt"
_REMEDY = "pass load_optimizer_states=False, with which moments begin again"

#: What of the model's file is DeepSpeed's; the rest is the program's `client_state`.
_OWN = frozenset((
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params "
    "frozen_param_fragments lr_scheduler data_sampler random_ltd sparse_tensor_module_names "
    "skipped_steps global_steps global_samples dp_world_size mp_world_size "
    "checkpoint_parallel_dimensions ds_config ds_version").split())


def is_of_deepspeed(folder: str) -> bool:
    """Whether a folder is a checkpoint of DeepSpeed's engine, of any stage."""
    return bool(glob.glob(os.path.join(glob.escape(folder), f"*{_MODEL}")))


@contextlib.contextmanager
def _layout_of(folder: str) -> Iterator[None]:
    """Surrounds what takes files apart: one of another layout lacks something."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise CorruptDataError(
            f"{folder} has files of another layout than DeepSpeed's with ZeRO 1 or 2 ({error!r}): "
            "load another tag") from error


def read_model(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the model's file, and the program's `client_state` in it."""
    if not os.path.exists(os.path.join(folder, _MODEL)):
        raise NotSupportedError(
            f"{folder} is of ZeRO 3, whose parameters are cut over ranks: run DeepSpeed's "
            "zero_to_fp32.py on it, and give engine.load_module_state_dict what that writes")
    saved = read(os.path.join(folder, _MODEL), "module", "lr_scheduler", "param_shapes",
                 "global_steps", "skipped_steps", "global_samples", "dp_world_size",
                 "mp_world_size")
    if saved["mp_world_size"] != 1:
        raise NotSupportedError(f"{folder} has a model that is cut over {saved['mp_world_size']} "
                                "ranks: save it from one with whole parameters")
    client_state = {name: value for name, value in saved.items() if name not in _OWN}
    return saved, copy.deepcopy(client_state)  # out of the file


def read_state(folder: str, saved: Mapping[str, Any], optimizer: Any,
               names: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the state of a checkpoint as a state dict of an optimizer, whose parameters have
    these names. Each group of parameters is one flat tensor there, which ranks have parts of."""
    ranks = saved["dp_world_size"]
    parts = []
    for rank in range(ranks):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        found = glob.glob(os.path.join(glob.escape(folder), f"*{name}"))
        if len(found) != 1:
            raise InvalidArgumentError(
                f"{folder} has no {name}, and {ranks} ranks have saved: bring the files of all of "
                "them there, or pass load_optimizer_states=False")
        parts.append(read(found[0], "optimizer_state_dict")["optimizer_state_dict"])
    with _layout_of(folder):
        return _state_of(folder, saved, parts, optimizer, names)


def _state_of(folder: str, saved: Mapping[str, Any], parts: list[dict[str, Any]], optimizer: Any,
              names: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    if not all("single_partition_of_fp32_groups" in part and isinstance(
            part["base_optimizer_state"], dict) for part in parts):
        raise NotSupportedError(f"{folder} is not of ZeRO 1 or 2, or elastic: {_REMEDY}")
    states: dict[torch.Tensor, dict[str, Any]] = {}
    for group, shapes in enumerate(saved["param_shapes"]):
        flat, step = _flat_of(folder, group, parts, optimizer,
                              saved["global_steps"] - saved["skipped_steps"])
        count = sum(shape.numel() for shape in shapes.values())
        aligned = any(any(map(any, part.get("param_alignment_paddings") or ())) for part in parts)
        for key, values in flat.items():  # moments end in the padding of the last rank
            found = sum(each.numel() for each in values)
            if aligned or found < count or key == "master" and found != count:
                raise NotSupportedError(
                    f"{folder} has {found} values for the {count} of group {group}, whose "
                    f"parameters are padded: {_REMEDY}")
        at = 0
        for name, shape in shapes.items():
            if name not in names:
                raise InvalidArgumentError(f"{folder} has state of {name}, and the model no such "
                                           "parameter: load it into the model that has saved")
            state = {key: _cut(values, at, at + shape.numel()).view(shape)
                     for key, values in flat.items()
                     # The model's file has masters of fp32.
                     if key != "master" or names[name].dtype != torch.float32}
            if state:
                states[names[name]] = state | ({} if step is None else {"step": step})
            at += shape.numel()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    numbers = itertools.count()
    groups = [{**group, "params": list(itertools.islice(numbers, len(group["params"])))}
              for group in optimizer.param_groups]
    of_parts = parts[0]["base_optimizer_state"]["param_groups"]
    if len(of_parts) == len(groups):
        for mine, theirs in zip(groups, of_parts, strict=True):
            mine["lr"] = theirs["lr"]
    return {"param_groups": groups, "state": {
        number: states[each] for number, each in enumerate(parameters) if each in states}}


def _flat_of(folder: str, group: int, parts: list[dict[str, Any]], optimizer: Any,
             steps: int) -> tuple[dict[str, list[torch.Tensor]], Any]:
    """Returns masters and moments of a group, by the parts of ranks, and the steps that it has
    made. An engine without `steps`, and SGD without momentum, have saved no moments."""
    base = [part["base_optimizer_state"] for part in parts]
    of_group = [each["state"].get(group, {}) for each in base]
    masters = [part["single_partition_of_fp32_groups"][group] for part in parts]
    if not any(torch.is_tensor(value) and value.dim() > 0 for value in of_group[0].values()):
        if not optimizer.counts_steps:
            return {"master": masters}, None
        if steps == 0:
            return {}, None
    flat = {"master": masters}
    for name in optimizer.state_names.values():
        if not all(name in each for each in of_group):
            raise InvalidArgumentError(
                f"{folder} has no {name}, which a {type(optimizer).__name__} has: give initialize "
                f"the optimizer that has saved, or {_REMEDY}")
        flat[name] = [each[name].flatten() for each in of_group]
    step = of_group[0].get("step", base[0]["param_groups"][group].get("step"))
    if step is None and optimizer.counts_steps:
        raise InvalidArgumentError(
            f"{folder} has moments of group {group} and no step, the number of its updates, which "
            f"the bias correction needs: {_REMEDY}")
    return flat, step


def _cut(parts: list[torch.Tensor], start: int, stop: int) -> torch.Tensor:
    """Returns a range of a flat tensor, of which these are the parts: a view where one has it."""
    pieces = []
    for part in parts:
        pieces.append(part[max(start, 0):max(stop, 0)])
        start, stop = start - part.numel(), stop - part.numel()
    pieces = [piece for piece in pieces if piece.numel()] or pieces[:1]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
