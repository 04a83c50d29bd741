"""Blocks of a model, which pass through the device one after the other."""
from __future__ import annotations

from collections.abc import Collection

import torch

from spillway.errors import InvalidArgumentError


def find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the repeated modules that hold most of the model's parameters, in their order."""
    best: list[torch.nn.Module] = []
    most = 0
    for module in model.modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = list(module)
        if len(children) < 2 or len({type(child) for child in children}) > 1:
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if size > most:
            best, most = children, size
    return best


def units_of(model: torch.nn.Module, blocks: list[torch.nn.Module],
             others: Collection[int | None] = ()) -> dict[torch.nn.Parameter, int | None]:
    """Returns the number of the block that each parameter of a model is in; None where that is
    none, or are several. Each block has parameters of its own, or is one of `others`."""
    if not blocks:
        raise InvalidArgumentError(
            "no blocks were found: the model has no ModuleList of at least two modules of one "
            "class; name them with blocks=[...]")
    owners: dict[torch.nn.Parameter, list[int | None]] = {}
    for unit, block in enumerate(blocks):
        for parameter in block.parameters():
            owners.setdefault(parameter, []).append(unit)
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, []).append(None)
    units = {parameter: found[0] if len(set(found)) == 1 else None
             for parameter, found in owners.items()}
    for unit in sorted(set(range(len(blocks))) - {*units.values(), *others}):
        raise InvalidArgumentError(
            f"block {unit} has no parameters of its own; leave it out of blocks")
    return units
