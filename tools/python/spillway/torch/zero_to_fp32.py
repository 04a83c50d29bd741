"""The model of a checkpoint in fp32, for programs without an engine, as DeepSpeed's zero_to_fp32.

    python -m spillway.torch.zero_to_fp32 CHECKPOINTS OUTPUT [--safe_serialization] [--tag TAG]

Checkpoints are those of `engine.save_checkpoint`, and DeepSpeed's of ZeRO 1, 2 and 3.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from spillway._load import native
from spillway._paths import Path, path_of
from spillway.errors import Error, InvalidArgumentError
from spillway.torch._deepspeed_files import Cut, Saved, is_of_deepspeed
from spillway.torch._engine_checkpoint import MODEL, OPTIMIZER, find, read
from spillway.torch._own_masters import Master, Room, masters_of, read_names
from spillway.torch._weight_files import Value, whole, write_files


class LazyTensor:
    """A value of a model: `contiguous()` reads it, as a tensor that is in no file."""

    def __init__(self, source: Value) -> None:
        self._source = source
        self.shape: torch.Size = source.shape
        self.dtype: torch.dtype = (torch.float32 if source.dtype.is_floating_point
                                   else source.dtype)

    def contiguous(self) -> torch.Tensor:
        """Returns the tensor in memory of its own."""
        return self._source.contiguous().to(self.dtype, copy=True).contiguous()


def _values_of(checkpoint_dir: Path, tag: str | None, without_frozen: bool,
               room: str) -> dict[str, LazyTensor]:
    """Returns what a checkpoint has; 16-bit state is copied into `room` while it is read."""
    folder = find(checkpoint_dir, tag)
    if folder is None:
        raise InvalidArgumentError(f"there is no file latest in {checkpoint_dir}: give the folder "
                                   "that save_checkpoint was given, or the tag of a checkpoint")
    sources: Mapping[str, Any]
    if is_of_deepspeed(folder):
        saved = Saved(folder)
        sources, frozen = saved.whole(), saved.frozen()
    else:
        values = read(os.path.join(folder, MODEL), weights_only=True, mapped=True)
        names, frozen = read_names(folder, values)
        sources = {**values, **masters_of(os.path.join(folder, OPTIMIZER), names, values,
                                          Room(room))}
    left_out = set(frozen) if without_frozen else set()
    made: dict[Any, LazyTensor] = {}  # names of one parameter have one value
    return {name: made.setdefault(_identity_of(source), LazyTensor(source))
            for name, source in sources.items()
            if name not in left_out and isinstance(source, (torch.Tensor, Cut, Master))}


def _identity_of(source: Any) -> Any:
    """Returns what is equal for two names of the same values."""
    if not isinstance(source, torch.Tensor) or not source.numel():
        return id(source)
    return source.data_ptr(), source.dtype, source.shape, source.stride()


def get_fp32_state_dict_from_zero_checkpoint(
        checkpoint_dir: Path, tag: str | None = None, exclude_frozen_parameters: bool = False,
        lazy_mode: bool = False) -> dict[str, Any]:
    """Returns the state dict of a checkpoint's model, by default the latest's: masters in fp32, and
    whatever else has fractions in fp32 too.

    With `lazy_mode` values have `shape`, `dtype` and `contiguous()`, which reads the tensor. While
    16-bit state is read, two slots for each tile of it, twice its size, lie in `checkpoint_dir`.
    """
    values = _values_of(checkpoint_dir, tag, exclude_frozen_parameters,
                        path_of(checkpoint_dir, "checkpoint_dir"))
    return values if lazy_mode else whole(values, values)


def convert_zero_checkpoint_to_fp32_state_dict(
        checkpoint_dir: Path, output_dir: Path, max_shard_size: str | int | None = "5GB",
        safe_serialization: bool = False, tag: str | None = None,
        exclude_frozen_parameters: bool = False) -> None:
    """Writes that state dict into a folder: pytorch_model.bin, or with `safe_serialization`
    model.safetensors, in files of at most `max_shard_size` bytes and an index where it is larger.

    A file of safetensors is written one tensor after the other; a file of torch is in memory whole.
    While 16-bit state is read, two slots for each tile of it, twice its size, lie in `output_dir`.
    A file that programs would read in place of the new ones is refused before anything is written.
    """
    folder = path_of(output_dir, "output_dir")
    limit = None if max_shard_size is None else native.parse_bytes(str(max_shard_size))
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidArgumentError(f"output_dir {folder} is a file: give a folder")
    write_files(_values_of(checkpoint_dir, tag, exclude_frozen_parameters, folder), folder, limit,
                safe_serialization)


def load_state_dict_from_zero_checkpoint(model: torch.nn.Module, checkpoint_dir: Path,
                                         tag: str | None = None) -> torch.nn.Module:
    """Moves a model to the CPU, loads that state dict into it as far as it has the names, and
    returns it."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag),
                          strict=False)
    return model


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m spillway.torch.zero_to_fp32")
    parser.add_argument("checkpoint_dir", help="the folder that save_checkpoint was given")
    parser.add_argument("output_dir", help="the folder of the files")
    parser.add_argument("--max_shard_size", default="5GB", help="as much is in a file, e.g. 5GB")
    parser.add_argument("--safe_serialization", action="store_true",
                        help="write safetensors in place of files of torch")
    parser.add_argument("-t", "--tag", help="the checkpoint; by default the latest")
    parser.add_argument("--exclude_frozen_parameters", action="store_true",
                        help="leave out parameters that were not trained")
    try:
        convert_zero_checkpoint_to_fp32_state_dict(**vars(parser.parse_args()))
    except (Error, OSError) as error:
        print(f"zero_to_fp32: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
