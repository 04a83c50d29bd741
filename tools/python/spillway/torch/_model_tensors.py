"""The tensors of a model by the names of checkpoints, and buffers that no checkpoint has."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from spillway.torch._taken_data import is_plain

# What PEFT puts into the names of a model's own tensors.
_OF_ADAPTERS = re.compile(r"^base_model\.model\.|\.(?:base_layer|original_module)(?=\.)"
                          r"|\.modules_to_save\.[^.]+(?=\.)")


class Wanted:
    """A parameter or buffer, and all the places and names that it has in its model."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.names: list[str] = []
        self.places: list[tuple[torch.nn.Module, str]] = []
        self.is_stored = False  #: in checkpoints

    def is_plain(self) -> bool:
        """Whether it is of torch's own class, and of no quantizer's."""
        return type(self.tensor) is torch.Tensor or is_plain(self.tensor)

    def replace(self, values: torch.Tensor) -> None:
        """Puts a tensor of these values in its place."""
        new = values
        if isinstance(self.tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(values, requires_grad=self.tensor.requires_grad)
        vars(new).update(vars(self.tensor))
        for module, key in self.places:
            setattr(module, key, new)


def wanted_of(model: torch.nn.Module) -> list[Wanted]:
    """Returns the parameters and buffers of a model, each once."""
    found: dict[int, Wanted] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is None:
                    continue
                wanted = found.setdefault(id(tensor), Wanted(tensor))
                wanted.names.append(f"{prefix}.{key}" if prefix else key)
                wanted.places.append((module, key))
                wanted.is_stored |= (table is module._parameters
                                     or key not in module._non_persistent_buffers_set)
    return list(found.values())


def stored_names(name: str, prefix: str) -> list[str]:
    """Returns what checkpoints may call a tensor, with and without what transformers puts before
    the names of a model's body, and without what PEFT adds."""
    plain = _OF_ADAPTERS.sub("", name)
    names = [name, plain]
    if prefix:
        names += [plain.removeprefix(f"{prefix}."), f"{prefix}.{plain}"]
    return list(dict.fromkeys(names))


def make_buffers(model: torch.nn.Module) -> list[str]:
    """Makes what is on `meta` and in no checkpoint, such as frequencies of rotary embeddings, by
    what transformers initializes a module with; all else is on `meta` still, and stays as it is.
    Returns the names of what that leaves."""
    left = []
    for name, module, owner in _with_owners(model):
        keys = [key for key, buffer in module._buffers.items() if buffer is not None
                and buffer.is_meta and key in module._non_persistent_buffers_set]
        before = {key: module._buffers[key] for key in keys}
        for key in keys:
            setattr(module, key, torch.zeros_like(before[key], device="cpu"))
        if keys and owner is not None:
            with torch.no_grad():
                owner._init_weights(module)
        for key in keys:
            if module._buffers[key]._version == 0:
                setattr(module, key, before[key])
                left.append(f"{name}.{key}" if name else key)
    return left


def _with_owners(module: torch.nn.Module, name: str = "",
                 owner: Any = None) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Returns modules, their names, and the model of transformers that each is of."""
    if callable(getattr(type(module), "_init_weights", None)):
        owner = module
    yield name, module, owner
    for key, child in module.named_children():
        yield from _with_owners(child, f"{name}.{key}" if name else key, owner)
