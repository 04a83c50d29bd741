"""Tensors that lie in files: those of checkpoints of safetensors, and room for converted ones."""
from __future__ import annotations

import mmap
import os
import tempfile
from typing import NamedTuple

import torch

from spillway._load import native
from spillway.errors import IoError

#: Element types by their name in the format.
TYPES: dict[str, torch.dtype] = {kind: dtype for kind, name in {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}.items()
    if (dtype := getattr(torch, name, None)) is not None}

# A mapping may be larger than memory: pages that nobody writes take none. Python names the flag
# from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Stored(NamedTuple):
    """Where a tensor lies."""

    file: str
    kind: str  #: the format's name of its type
    shape: torch.Size
    offset: int
    bytes: int


def tensors_of(checkpoint: str) -> dict[str, Stored]:
    """Returns the tensors of a folder or a file, by name. Their sizes and places are checked."""
    return {name: Stored(file, kind, torch.Size(shape), offset, size)
            for name, file, kind, shape, offset, size in native.checkpoint_tensors(checkpoint)}


class Mappings:
    """Maps files, each once. What is written to its tensors stays in this process."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap.mmap] = {}

    def tensor(self, stored: Stored) -> torch.Tensor:
        """Returns a tensor that is read from its file wherever it is used, or a copy of one whose
        place does not suit its type."""
        dtype = TYPES[stored.kind]
        if not stored.bytes:
            return torch.empty(stored.shape, dtype=dtype, device="cpu")
        if stored.file not in self._maps:
            with open(stored.file, "rb") as file:
                self._maps[stored.file] = mmap.mmap(
                    file.fileno(), 0, mmap.MAP_PRIVATE | _NO_RESERVE,
                    mmap.PROT_READ | mmap.PROT_WRITE)
        raw = torch.frombuffer(self._maps[stored.file], dtype=torch.uint8, count=stored.bytes,
                               offset=stored.offset)
        if stored.offset % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(stored.shape)


class Room:
    """Memory for so many bytes of tensors: of a file without a name in a folder, which is gone with
    the last of them, or of the host."""

    _ALIGNMENT = 64  #: bytes, on a multiple of which each tensor begins

    def __init__(self, folder: str | None, tensors: list[torch.Tensor]) -> None:
        self._map: mmap.mmap | None = None
        self._end = 0
        size = sum(self._rounded(tensor) for tensor in tensors)
        if folder is None or not size:
            return
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise IoError(
                    f"{folder} has no room for {size} bytes of converted tensors "
                    f"({error.strerror}): name another folder, or build the model in the "
                    "checkpoint's own element type", error.errno or 0) from error
            self._map = mmap.mmap(file.fileno(), size)

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """Returns room for one of the tensors."""
        if self._map is None or not like.nbytes:
            return torch.empty(like.shape, dtype=like.dtype, device="cpu")
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=like.nbytes, offset=self._end)
        self._end += self._rounded(like)
        return raw.view(like.dtype).view(like.shape)

    def _rounded(self, tensor: torch.Tensor) -> int:
        return -(-tensor.nbytes // self._ALIGNMENT) * self._ALIGNMENT
