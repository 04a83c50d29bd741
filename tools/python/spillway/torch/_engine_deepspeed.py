"""State of DeepSpeed's checkpoints for an engine of any number of ranks, and values of a model."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._deepspeed_files import REMEDY, Cut, Saved, Values


class _State(Mapping[str, Any]):
    """State of a parameter. Its tensors are brought together whenever they are read, so that no
    more than those of one parameter are in memory."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        return entry.contiguous() if isinstance(entry, Cut) else entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def take_values(module: torch.nn.Module, values: Values, strict: bool) -> None:
    """Does what `module.load_state_dict` does, one parameter after the other. Raises before
    anything has changed."""
    mine = module.state_dict(keep_vars=True)
    cut = {name: value for name, value in values.items() if isinstance(value, Cut)}
    lacks, unknown = sorted(mine.keys() - values.keys()), sorted(values.keys() - mine.keys())
    if strict and (lacks or unknown):
        raise InvalidArgumentError(
            f"the checkpoint lacks {', '.join(lacks) or 'nothing'} of the model, and has "
            f"{', '.join(unknown) or 'nothing'} beside it: load it into the model that has saved, "
            "or pass load_module_strict=False")
    for name, value in cut.items():
        if name in mine and mine[name].shape != value.shape:
            raise InvalidArgumentError(
                f"{name} has the shape {tuple(value.shape)} in the checkpoint, and "
                f"{tuple(mine[name].shape)} in the model: load it into the model that has saved")
    module.load_state_dict({name: value for name, value in values.items() if name not in cut},
                           strict=False)
    with torch.no_grad():
        for name, value in cut.items():
            if name in mine:
                mine[name].copy_(value.contiguous())


def read_state(saved: Saved, optimizer: Any, names: Mapping[str, torch.Tensor],
               strict: bool) -> dict[str, Any]:
    """Returns the state of a checkpoint as a state dict of an optimizer, whose parameters have
    these names. Unless `strict`, those of which nothing was saved begin again."""
    if not saved.shapes:
        raise NotSupportedError(f"{saved.folder} is not of ZeRO 1, 2 or 3: {REMEDY}")
    known = set().union(*saved.shapes)
    lacks = [name for name, parameter in names.items()
             if name not in known and optimizer.trains(parameter)]
    if strict and lacks:
        raise InvalidArgumentError(
            f"{saved.folder} has no state of {', '.join(lacks)}, which the optimizer trains here "
            "and did not there: freeze what was frozen, or pass load_module_strict=False, with "
            "which such parameters begin again")
    for name, shape in ((name, shape) for group in saved.shapes for name, shape in group.items()):
        if name not in names:
            raise InvalidArgumentError(f"{saved.folder} has state of {name}, and the model no such "
                                       "parameter: load it into the model that has saved")
        if names[name].shape != shape:
            raise InvalidArgumentError(
                f"{saved.folder} has state of {name} with the shape {tuple(shape)}, and the model "
                f"has {tuple(names[name].shape)}: load it into the model that has saved")
    with saved.layout():
        return _state_of(saved, optimizer, names)


def _state_of(saved: Saved, optimizer: Any, names: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    states: dict[torch.Tensor, _State] = {}
    for group, shapes in enumerate(saved.shapes):
        flat, step = _flat_of(saved, group, optimizer)
        cuts = {key: saved.cut(group, values, padded=key != "master")  # DeepSpeed pads moments
                for key, values in flat.items()}
        for name in shapes:
            state: dict[str, Any] = {
                key: cut[name] for key, cut in cuts.items()
                # What the model has is the master of fp32.
                if key != "master" or names[name].dtype != torch.float32}
            if state:
                states[names[name]] = _State(state | ({} if step is None else {"step": step}))
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    numbers = itertools.count()
    groups = [{**group, "params": list(itertools.islice(numbers, len(group["params"])))}
              for group in optimizer.param_groups]
    of_parts = saved.parts[0][1]["param_groups"]
    if len(of_parts) == len(groups):
        for mine, theirs in zip(groups, of_parts, strict=True):
            mine["lr"] = theirs["lr"]
    return {"param_groups": groups, "state": {
        number: states[each] for number, each in enumerate(parameters) if each in states}}


def _flat_of(saved: Saved, group: int,
             optimizer: Any) -> tuple[dict[str, list[torch.Tensor]], Any]:
    """Returns masters and moments of a group, by the parts of ranks, and the steps that it has
    made. An engine without `steps`, and SGD without momentum, have saved no moments."""
    base = [state for _, state in saved.parts]
    of_group = [each["state"].get(group, {}) for each in base]
    masters = [masters[group] for masters, _ in saved.parts]
    if not any(torch.is_tensor(value) and value.dim() > 0 for value in of_group[0].values()):
        if not optimizer.counts_steps:
            return {"master": masters}, None
        if saved.steps == 0:
            return {}, None
    flat = {"master": masters}
    for name in optimizer.state_names.values():
        if not all(name in each for each in of_group):
            raise InvalidArgumentError(
                f"{saved.folder} has no {name}, which an {type(optimizer).__name__} has: give "
                f"initialize the optimizer that has saved, or {REMEDY}")
        flat[name] = [each[name].flatten() for each in of_group]
    step = of_group[0].get("step", _settings_of(base[0]["param_groups"], group).get("step"))
    if step is None and optimizer.counts_steps:
        raise InvalidArgumentError(
            f"{saved.folder} has moments of group {group} and no step, the number of its updates, "
            f"which the bias correction needs: {REMEDY}")
    return flat, step


def _settings_of(groups: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Returns the settings of the flat tensor of that number: ZeRO 3 may cut a group into several,
    which are numbered on."""
    return next((group for group in groups if number in group.get("params", ())), groups[number]
                if number < len(groups) else {})
