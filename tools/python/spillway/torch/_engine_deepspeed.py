"""Checkpoints that DeepSpeed's engine has written with ZeRO 1 or 2: the model, masters, moments and
counts go into an engine, of any number of ranks."""
from __future__ import annotations

import collections
import glob
import os
import pickle
import types
from collections.abc import Mapping
from typing import Any

import torch

from spillway.errors import CorruptDataError, InvalidArgumentError, NotSupportedError

_MODEL = "mp_rank_00_model_states.pt"
_ALLOWED = {("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
            ("torch", "Size"): torch.Size, ("collections", "OrderedDict"): collections.OrderedDict}
#: What of the model's file is DeepSpeed's; the rest is the program's `client_state`.
_OWN = frozenset((
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params "
    "frozen_param_fragments lr_scheduler data_sampler random_ltd sparse_tensor_module_names "
    "skipped_steps global_steps global_samples dp_world_size mp_world_size "
    "checkpoint_parallel_dimensions ds_config ds_version").split())


class _Inert:
    """Stands for an object of DeepSpeed's: none of its code runs."""

    def __new__(cls, *_: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Makes tensors and plain values, and nothing that a file could do harm with."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("deepspeed."):
            return _Inert
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it has a {module}.{name}")
        return _ALLOWED[module, name]


def _read(path: str) -> Any:
    """Reads a file of DeepSpeed's. torch finds `Unpickler` in a module that it is given."""
    module = types.ModuleType("tensors_alone")
    module.Unpickler = _Unpickler  # type: ignore[attr-defined]
    try:
        return torch.load(path, map_location="cpu", pickle_module=module, weights_only=False)
    except (EOFError, KeyError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise CorruptDataError(f"{path} is damaged, or has more than tensors, numbers and texts "
                               f"({error}): load another tag, or pass load_module_only=True where "
                               "the other file is whole") from error


def is_of_deepspeed(folder: str) -> bool:
    """Whether a folder is a checkpoint of DeepSpeed's engine."""
    return os.path.exists(os.path.join(folder, _MODEL))


def read_model(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the model's file, and the program's `client_state` in it."""
    saved = _read(os.path.join(folder, _MODEL))
    if saved.get("mp_world_size") != 1:
        raise NotSupportedError(f"{folder} has a model that is cut over {saved['mp_world_size']} "
                                "ranks: save it from one with whole parameters")
    return saved, {name: value for name, value in saved.items() if name not in _OWN}


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
        parts.append(_read(found[0])["optimizer_state_dict"])
    if not all("single_partition_of_fp32_groups" in part and isinstance(
            part["base_optimizer_state"], dict) for part in parts):
        raise NotSupportedError(f"{folder} is not of ZeRO 1 or 2, or elastic: pass "
                                "load_optimizer_states=False, with which moments begin again")
    states: dict[torch.Tensor, dict[str, Any]] = {}
    for group, shapes in enumerate(saved["param_shapes"]):
        _cut(folder, group, shapes, parts, optimizer, names, states)
    with optimizer.state_left_out():
        document = optimizer.state_dict()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    of_parts = parts[0]["base_optimizer_state"]["param_groups"]
    if len(of_parts) == len(document["param_groups"]):
        for mine, theirs in zip(document["param_groups"], of_parts, strict=True):
            mine["lr"] = theirs["lr"]
    return {"param_groups": document["param_groups"],
            "state": {number: states[each] for number, each in enumerate(parameters)
                      if each in states}}


def _cut(folder: str, group: int, shapes: Mapping[str, torch.Size], parts: list[dict[str, Any]],
         optimizer: Any, names: Mapping[str, torch.Tensor],
         states: dict[torch.Tensor, dict[str, Any]]) -> None:
    """Cuts the flat tensors of a group into the state of its parameters."""
    flat = {"master": torch.cat([part["single_partition_of_fp32_groups"][group]
                                 for part in parts])}
    count = sum(shape.numel() for shape in shapes.values())
    aligned = any(any(map(any, part.get("param_alignment_paddings") or ())) for part in parts)
    if aligned or flat["master"].numel() != count:
        raise NotSupportedError(
            f"{folder} has {flat['master'].numel()} values for the {count} of group {group}, whose "
            "parameters are padded: pass load_optimizer_states=False")
    of_group = [part["base_optimizer_state"]["state"].get(group, {}) for part in parts]
    for name in optimizer.state_names.values():
        if not all(name in each for each in of_group):
            raise InvalidArgumentError(
                f"{folder} has no {name}, which a {type(optimizer).__name__} has: give initialize "
                "the optimizer that has saved, or pass load_optimizer_states=False")
        flat[name] = torch.cat([each[name].flatten() for each in of_group])
    step = of_group[0].get("step", parts[0]["base_optimizer_state"]["param_groups"][group].get(
        "step"))
    at = 0
    for name, shape in shapes.items():
        if name not in names:
            raise InvalidArgumentError(f"{folder} has state of {name}, and the model no such "
                                       "parameter: load it into the model that has saved")
        state = {key: values[at:at + shape.numel()].view(shape) for key, values in flat.items()}
        if names[name].dtype == torch.float32:
            del state["master"]  # which the model's file has
        if step is not None:
            state["step"] = step
        states[names[name]] = state
        at += shape.numel()
