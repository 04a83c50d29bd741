"""Checkpoints of the engine: a folder TAG with the model, the optimizer's state and the rest."""
from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from spillway._files import written_whole
from spillway._paths import Path, path_of
from spillway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from spillway.torch.engine import Engine

_LATEST = "latest"
_MODEL, _OPTIMIZER, _ENGINE = "model.pt", "optimizer", "engine.pt"


def _folder(directory: str, tag: Any) -> str:
    """Returns DIRECTORY/TAG. Raises for a tag that leads out of the directory."""
    folder = os.path.normpath(os.path.join(directory, str(tag)))
    if not str(tag) or os.path.commonpath([directory, folder]) != directory or (
            folder in (directory, os.path.join(directory, _LATEST))):
        raise InvalidArgumentError(f"tag is {tag!r}; it names a folder within {directory}")
    return folder


def _write(document: Mapping[str, Any], path: str) -> None:
    """Writes a file that `torch.load` reads. torch's own files do not tell why they failed."""
    with open(path, "wb") as file:
        torch.save(document, file)


def save(engine: Engine, save_dir: Path, tag: Any, client_state: Mapping[str, Any] | None,
         save_latest: bool, exclude_frozen_parameters: bool) -> None:
    """Writes SAVE_DIR/TAG, which replaces one that is there once it is whole, and then `latest`."""
    directory = path_of(save_dir, "save_dir")
    tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
    with written_whole(_folder(directory, tag), (_ENGINE, _MODEL),
                       "|".join((_MODEL, _OPTIMIZER, _ENGINE))) as new:
        os.mkdir(new)
        engine.optimizer.synchronize()
        values = engine.module.state_dict()
        if exclude_frozen_parameters:
            for name, parameter in engine.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    values.pop(name, None)
        _write(values, os.path.join(new, _MODEL))
        engine.optimizer.save(os.path.join(new, _OPTIMIZER))
        _write(engine.counts() | {"client_state": dict(client_state or {})},
               os.path.join(new, _ENGINE))
    if save_latest:
        part = pathlib.Path(directory) / f"{_LATEST}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(tag)
            file.flush()
            os.fsync(file.fileno())
        part.replace(part.with_name(_LATEST))


def find(load_dir: Path, tag: Any) -> str | None:
    """Returns the folder of a checkpoint, or None where there is none and no tag is given."""
    directory = path_of(load_dir, "load_dir")
    latest = pathlib.Path(directory) / _LATEST
    if tag is None:
        if not latest.exists():
            return None
        tag = latest.read_text(encoding="utf-8").strip()
    folder = _folder(directory, tag)
    if not os.path.exists(os.path.join(folder, _ENGINE)):
        there = sorted(path.parent.name for path in pathlib.Path(directory).glob(f"*/{_ENGINE}"))
        raise InvalidArgumentError(
            f"there is no checkpoint of tag {tag} in {directory}; there is "
            f"{', '.join(there) or 'none'}: pass the tag of one, or none for the latest")
    return folder


def load(engine: Engine, folder: str, *, strict: bool, optimizer: bool, schedule: bool,
         module_only: bool, load_model: Callable[..., Any] | None) -> dict[str, Any]:
    """Takes what was saved in a folder; returns its `client_state`."""
    # What the program has given as client_state is any object.
    saved = torch.load(os.path.join(folder, _ENGINE), weights_only=False)
    values = torch.load(os.path.join(folder, _MODEL))
    if not module_only:
        engine.zero_grad()
    with_state = optimizer and not module_only
    if with_state:
        engine.optimizer.load_state_dict(saved["groups"])
    with (engine.optimizer.replacing("load_checkpoint") if with_state
          else contextlib.nullcontext()):
        if load_model is not None:
            load_model(src=values, dst=engine.module)
        else:
            engine.module.load_state_dict(values, strict=strict)
        if with_state:
            engine.optimizer.load(os.path.join(folder, _OPTIMIZER))
    if not module_only:
        if schedule and engine.lr_scheduler is not None and saved["schedule"] is not None:
            engine.lr_scheduler.load_state_dict(saved["schedule"])
        engine.take_counts(saved)
    return saved["client_state"]
