"""What quantizers keep of a model: tensors that are bytes of their block, wherever a module has
them."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from spillway.errors import NotSupportedError
from spillway.torch._taken_data import data_of, is_plain

#: Objects of quantizers whose attributes may be tensors of a module, by class.
_STATES = ("bitsandbytes.functional.QuantState", "bitsandbytes.autograd._functions.MatmulLtState")
#: Element types in which no layer computes: a module with a matrix of one is a quantizer's.
_PACKED = {dtype for name in (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
    if (dtype := getattr(torch, name, None)) is not None}
_OF_TORCH = {"_parameters", "_buffers", "_modules"}


class Part(NamedTuple):
    """A plain tensor that nobody trains."""

    tensor: torch.Tensor
    name: str
    unit: int | None
    bytes: int


class Wrapper(NamedTuple):
    """A parameter or buffer of a class that keeps its bytes in tensors of its own."""

    table: dict[str, Any]  #: of a module, that has it
    key: str
    name: str
    tensor: torch.Tensor
    unit: int | None


class _Found(NamedTuple):
    tensor: torch.Tensor
    name: str
    units: set[int | None]
    owners: list[Any]  #: objects of _STATES, each of which has the tensor


class Quantized:
    """What quantizers keep of a model beside plain parameters."""

    def __init__(self, model: torch.nn.Module, blocks: list[torch.nn.Module]) -> None:
        self.wrappers: list[Wrapper] = []
        self.parts: list[Part] = []
        self.aliases: list[tuple[torch.Tensor, torch.Tensor]] = []  #: of a part or parameter
        self.places: list[tuple[dict[str, Any], str, torch.Tensor]] = []  #: of its modules
        self._wrapped: set[int] = set()      # whose bytes are in parts, by identity
        self._found: dict[int, _Found] = {}  # by identity
        self._seen: set[int] = set()         # objects that are looked at
        self._quantized: set[int] = set()    # units
        self._inside: dict[int, set[int | None]] = {}
        for unit, block in enumerate(blocks):
            for module in block.modules():
                self._inside.setdefault(id(module), set()).add(unit)
        for prefix, module in model.named_modules():
            self._add_module(module, f"{prefix}." if prefix else "")
        self._add_parts([parameter for parameter in model.parameters()
                         if not self.wraps(parameter)])

    def check_blocks(self) -> None:
        """Raises for what cannot be streamed, or stay on the device."""
        for wrapper in self.wrappers:
            if wrapper.unit is None:
                raise NotSupportedError(
                    f"{wrapper.name} is a {type(wrapper.tensor).__name__}, and of no block, or of "
                    "several: quantize modules of blocks alone, or name blocks=[...] that have it")

    def wraps(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes of a parameter or buffer are in parts."""
        return id(tensor) in self._wrapped

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a quantizer's."""
        return id(tensor) in self._found or self.wraps(tensor)

    def units(self) -> set[int | None]:
        """Returns the units that have parts."""
        return {part.unit for part in self.parts}

    def quantized_units(self) -> set[int]:
        """Returns the units in which a quantizer computes."""
        return set(self._quantized)

    def own(self) -> None:
        """Makes what a quantizer shares between states of many modules, such as its table of
        values, a tensor of this model alone."""
        for number, part in enumerate(self.parts):  # none of them waits
            found = self._found[id(part.tensor)]
            if part.unit is not None or not found.owners:
                continue
            mine = part.tensor.clone()
            for owner in found.owners:
                for key, value in vars(owner).items():
                    if value is part.tensor:
                        setattr(owner, key, mine)
            self.parts[number] = part._replace(tensor=mine)

    def _add_module(self, module: torch.nn.Module, prefix: str) -> None:
        units = self._inside.get(id(module), {None})
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is None or (table is module._buffers and not is_wrapper(tensor)):
                    continue
                if _waits(tensor):
                    self._add_waiting(tensor, prefix + key, units)
                elif is_wrapper(tensor):
                    self._add_wrapper(table, key, prefix + key, units)
                elif not is_plain(tensor):
                    self._add_state(vars(tensor), prefix + key, units)
        for key, value in vars(module).items():
            if isinstance(value, torch.ScriptObject):
                raise _unknown(value, prefix + key)
        if not _is_quantized(module):
            return
        self._quantized.update(unit for unit in units if unit is not None)
        self.places += [(module._parameters, key, parameter)
                        for key, parameter in module._parameters.items() if parameter is not None]
        for key, buffer in module._buffers.items():
            if buffer is not None and not is_wrapper(buffer):
                self._add(buffer, prefix + key, units)
        self._add_state({key: value for key, value in vars(module).items()
                         if key not in _OF_TORCH}, prefix.rstrip("."), units)

    def _add_wrapper(self, table: dict[str, Any], key: str, name: str,
                     units: set[int | None]) -> None:
        tensor = table[key]
        if tensor.requires_grad:
            raise NotSupportedError(
                f"{name} is a {type(tensor).__name__} and needs gradients: train adapters beside "
                f"it, and freeze it ({name}.requires_grad_(False))")
        self.wrappers.append(Wrapper(table, key, name, tensor, _only(units)))
        self._wrapped.add(id(tensor))
        for inner_name, inner in inner_tensors(tensor, name):
            self._add(inner, inner_name, units)

    def _add_waiting(self, tensor: torch.Tensor, name: str, units: set[int | None]) -> None:
        if tensor.device.type != "meta":
            raise NotSupportedError(
                f"{name} is a {type(tensor).__name__} that is not quantized yet, as bitsandbytes "
                "does when it moves: call model.to(\"cpu\") before offload_model")
        self.parts.append(Part(tensor, name, _only(units), _bytes_to_be(tensor)))
        self._wrapped.add(id(tensor))

    def _add_state(self, values: dict[str, Any], name: str, units: set[int | None],
                   owner: Any = None) -> None:
        for key, value in list(values.items()):
            self._look(value, f"{name}.{key}", units, owner)

    def _look(self, value: Any, name: str, units: set[int | None], owner: Any = None) -> None:
        """Finds the tensors of what a module or a state has."""
        if isinstance(value, torch.Tensor):
            if is_wrapper(value):
                raise _unknown(value, name)
            self._add(value, name, units, owner)
        elif isinstance(value, (dict, list, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, each in list(items):
                self._look(each, f"{name}[{key!r}]", units)
        elif _name_of(value) in _STATES:
            self._add_state(vars(value), name, units, value)
        elif isinstance(value, torch.ScriptObject) or _has_tensors(value, self._seen):
            raise _unknown(value, name)

    def _add(self, tensor: torch.Tensor, name: str, units: set[int | None],
             owner: Any = None) -> None:
        if not tensor.numel() or isinstance(tensor, torch.nn.Parameter):
            return
        found = self._found.setdefault(id(tensor), _Found(tensor, name, set(), []))
        found.units.update(units)
        if owner is not None:
            found.owners.append(owner)

    def _add_parts(self, parameters: Iterable[torch.Tensor]) -> None:
        places: dict[Any, torch.Tensor] = {}
        for parameter in parameters:
            places[_place(parameter)] = parameter
        for found in self._found.values():
            first = places.setdefault(_place(found.tensor), found.tensor)
            if first is not found.tensor:  # two tensors in the same memory
                self.aliases.append((found.tensor, first))
                continue
            self.parts.append(Part(found.tensor, found.name, _only(found.units),
                                   found.tensor.nbytes))


class Followers:
    """What refers to tensors of a unit otherwise, and goes to the device and back with them."""

    def __init__(self, quantized: Quantized, unit: int, tensors: list[torch.Tensor]) -> None:
        self._wrappers = [wrapper for wrapper in quantized.wrappers if wrapper.unit == unit]
        self._shown: list[torch.Tensor] = []  # in their place, while the unit is entered
        mine = {id(tensor) for tensor in tensors}
        self._places = [(table, key, tensor) for table, key, tensor in quantized.places
                        if id(tensor) in mine]
        self._aliases = [(alias, first) for alias, first in quantized.aliases if id(first) in mine]

    def enter(self) -> None:
        """Follows tensors that are on the device now."""
        self._follow()
        for wrapper in self._wrappers:
            # Of the same tensors inside, and of their device: that of a wrapper does not change.
            shown = rebuilt(wrapper.tensor, lambda inner: inner)
            if isinstance(wrapper.tensor, torch.nn.Parameter):
                shown._is_param = True
            wrapper.table[wrapper.key] = shown
            self._shown.append(shown)

    def restore(self) -> None:
        """Puts parameters in their places again where others in the same memory have taken them, as
        those of bitsandbytes do that move to where they are (PEFT moves them on the CPU)."""
        for table, key, tensor in self._places:
            other = table.get(key)
            if other is not tensor and other is not None and not is_wrapper(other) and (
                    other.data_ptr() == tensor.data_ptr()):
                table[key] = tensor

    def leave(self) -> None:
        """Follows tensors that are on the host now."""
        for wrapper, shown in zip(self._wrappers, self._shown, strict=False):
            if wrapper.table.get(wrapper.key) is shown:
                wrapper.table[wrapper.key] = wrapper.tensor
        self._shown = []
        self._follow()

    def _follow(self) -> None:
        for alias, first in self._aliases:
            alias.data = data_of(first)


def inner_tensors(tensor: torch.Tensor, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Returns the plain tensors that have the bytes of a wrapper, and their names."""
    for key in tensor.__tensor_flatten__()[0]:
        inner = getattr(tensor, key)
        if is_wrapper(inner):
            yield from inner_tensors(inner, f"{name}.{key}")
        else:
            yield f"{name}.{key}", inner


def rebuilt(tensor: torch.Tensor, function: Any) -> torch.Tensor:
    """Returns a wrapper like `tensor` of what `function` returns for its inner tensors."""
    keys, context = tensor.__tensor_flatten__()
    inner = {key: rebuilt(value, function) if is_wrapper(value := getattr(tensor, key))
             else function(value) for key in keys}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor keeps its bytes in tensors of its own."""
    return is_traceable_wrapper_subclass(tensor)


def _only(units: set[int | None]) -> int | None:
    """Returns the unit of what is in one alone."""
    return next(iter(units)) if len(units) == 1 else None


def _is_quantized(module: torch.nn.Module) -> bool:
    own = [tensor for table in (module._parameters, module._buffers, vars(module))
           for tensor in table.values() if isinstance(tensor, torch.Tensor)]
    return any(is_wrapper(tensor) or (tensor.dim() > 1 and tensor.dtype in _PACKED)
               or (isinstance(tensor, torch.nn.Parameter) and not is_plain(tensor))
               for tensor in own)


def _place(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "meta":
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.device


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _has_tensors(value: Any, seen: set[int]) -> bool:
    """Whether an object has tensors somewhere, but for modules and functions, which are others'."""
    if isinstance(value, torch.Tensor):
        return True
    if id(value) in seen or isinstance(value, (torch.nn.Module, type)) or callable(value):
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = value
    else:
        slots = (getattr(value, name, None) for kind in type(value).__mro__
                 for name in _slots(kind))
        inner = [*getattr(value, "__dict__", {}).values(), *slots]
    return any(_has_tensors(each, seen) for each in list(inner))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _waits(tensor: torch.Tensor) -> bool:
    """Whether a quantizer has not quantized weights yet, as it does on their way to a device."""
    kind = type(tensor).__name__
    return (kind == "Params4bit" and not getattr(tensor, "bnb_quantized", True)) or (
        kind == "Int8Params" and not getattr(tensor, "has_fp16_weights", True)
        and tensor.dtype != torch.int8)


def _bytes_to_be(tensor: torch.Tensor) -> int:
    """Returns the bytes that bitsandbytes will make of weights: elements, a factor for each block
    of them, in 8 bits where these are compressed, and tables of values."""
    if type(tensor).__name__ == "Int8Params":
        return tensor.numel() + 4 * tensor.shape[0]
    factors = -(-tensor.numel() // tensor.blocksize)
    compressed = factors + 4 * -(-factors // 256) + 4 + 4 * 256
    return -(-tensor.numel() // 2) + 4 * 16 + (compressed if tensor.compress_statistics
                                               else 4 * factors)


def _unknown(value: Any, name: str) -> NotSupportedError:
    return NotSupportedError(
        f"{name} is a {_name_of(value)}, a kind in which offload_model does not know the tensors: "
        "it would leave them where they are. Known are parameters, buffers, dicts and lists of "
        "plain tensors, tensors with __tensor_flatten__, and the states of bitsandbytes")
