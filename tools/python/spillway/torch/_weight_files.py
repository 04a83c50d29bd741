"""Files of a model's values that other programs read: safetensors, and those of torch.save."""
from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Protocol

import torch

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._engine_exports import replaced

_KINDS = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16",
          torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
          torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}

#: What programs look for in a folder, in the order of transformers.
_READ = ("model.safetensors", "model.safetensors.index.json",
         "pytorch_model.bin", "pytorch_model.bin.index.json")


class Value(Protocol):
    """A tensor, or what one is made of when it is wanted."""

    shape: torch.Size
    dtype: torch.dtype

    def contiguous(self) -> torch.Tensor:
        """Returns the tensor in one piece."""


def size_of(value: Value) -> int:
    """Returns the bytes of a value."""
    return value.shape.numel() * value.dtype.itemsize


def shards_of(values: Mapping[str, Value], limit: int | None) -> list[list[str]]:
    """Returns names in the order of the values, in lists of at most `limit` bytes, or of one."""
    shards: list[list[str]] = [[]]
    taken = 0
    for name, value in values.items():
        if shards[-1] and limit is not None and taken + size_of(value) > limit:
            shards.append([])
            taken = 0
        shards[-1].append(name)
        taken += size_of(value)
    return shards


def write_files(values: Mapping[str, Value], folder: str, limit: int | None, safe: bool) -> None:
    """Writes values as transformers names them: one file, or several and an index. Raises before
    it writes where a file is there that would be read in their place."""
    stem, ending = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    shards = shards_of(values, limit)
    names = [f"{stem}.{ending}"] if len(shards) == 1 else [
        f"{stem}-{number:05}-of-{len(shards):05}.{ending}"
        for number in range(1, len(shards) + 1)]
    index_name = f"{stem}.{ending}.index.json"
    _refuse_older(folder, names[0] if len(shards) == 1 else index_name)
    for name, shard in zip(names, shards, strict=True):
        with replaced(os.path.join(folder, name)) as file:
            if safe:
                _write_safetensors(file, {each: values[each] for each in shard})
            else:
                torch.save(whole(values, shard), file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(map(size_of, values.values()))},
                 "weight_map": {each: name for name, shard in zip(names, shards, strict=True)
                                for each in shard}}
        with replaced(os.path.join(folder, index_name)) as file:
            file.write(json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")


def _refuse_older(folder: str, name: str) -> None:
    for each in _READ[:_READ.index(name)]:
        if os.path.exists(path := os.path.join(folder, each)):
            raise InvalidArgumentError(f"{path} is there, which programs read in place of the new "
                                       f"{name}: remove it, or write into another folder")


def whole(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Returns tensors. Names of one value have one tensor."""
    made: dict[int, torch.Tensor] = {}
    return {name: made[id(value)] if id(value) in made
            else made.setdefault(id(value), value.contiguous())
            for name, value in ((name, values[name]) for name in names)}


def _write_safetensors(file: BinaryIO, values: Mapping[str, Value]) -> None:
    """Writes one tensor after the other, none of which is in memory before its turn."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, value in values.items():
        if value.dtype not in _KINDS:
            raise NotSupportedError(f"{name} has elements of {value.dtype}, which safetensors does "
                                    "not have: write pytorch_model.bin")
        header[name] = {"dtype": _KINDS[value.dtype], "shape": list(value.shape),
                        "data_offsets": [at, at + size_of(value)]}
        at += size_of(value)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for value in values.values():
        tensor = value.contiguous()
        file.write((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
                   if tensor.nbytes else b"")
