"""Checkpoints of the engine: a folder TAG with the model, the optimizer's state and the rest."""
from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spillway._files import staging_of, written_whole
from spillway._paths import Path, path_of
from spillway.errors import CorruptDataError, InvalidArgumentError, IoError
from spillway.torch._deepspeed_files import Saved, is_of_deepspeed
from spillway.torch._engine_deepspeed import read_state, take_values
from spillway.torch._loss_scaling import LossScaling
from spillway.torch._offloaded import OffloadedOptimizer
from spillway.torch._own_masters import NAMES, write_names
from spillway.torch._ranks import LOADS_TAG, SAVES_TAG, checksum

_LATEST = "latest"
MODEL, OPTIMIZER, _ENGINE = "model.pt", "optimizer", "engine.pt"


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


def read(path: str, weights_only: bool, mapped: bool = False) -> Any:
    """Reads a file that `_write` wrote; torch does not say which one it cannot read. Tensors are on
    the CPU, also those that were a GPU's, which this machine may lack; those of one that is
    `mapped` stay in it until they are used."""
    try:
        with open(path, "rb") as file:
            return torch.load(path if mapped else file, weights_only=weights_only, mmap=mapped,
                              map_location="cpu")
    except (EOFError, KeyError, OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a place before a file
            raise IoError(f"{path} cannot be read: {error.strerror}", error.errno or 0) from error
        raise CorruptDataError(f"{path} is damaged, or not a file of save_checkpoint ({error}): "
                               "load another tag") from error


def _save(engine: WithCheckpoints, save_dir: Path, tag: Any, client_state: Mapping[str, Any] | None,
          save_latest: bool, exclude_frozen_parameters: bool) -> None:
    """Writes SAVE_DIR/TAG, which replaces one that is there once it is whole, and then `latest`.
    Ranks write into one folder, which is the first one's to make and to put in its place."""
    directory = path_of(save_dir, "save_dir")
    tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
    folder = _folder(directory, tag)
    with contextlib.ExitStack() as staging:
        new = staging_of(folder)
        with engine.together(SAVES_TAG, f"{tag}: begins"):
            if engine.is_first:
                staging.enter_context(written_whole(folder, (_ENGINE, MODEL),
                                                    "|".join((MODEL, OPTIMIZER, _ENGINE, NAMES))))
                os.mkdir(new)
        with engine.together(SAVES_TAG, f"{tag}: fills"):
            engine.optimizer.synchronize()
            if engine.is_first:
                _fill(engine, new, client_state, exclude_frozen_parameters)
            elif not os.path.isdir(new):
                raise IoError(f"{new} is not there, which rank 0 has made: save into a folder that "
                              "all ranks see", errno.ENOENT)
            engine.optimizer.save(os.path.join(new, OPTIMIZER))
        with engine.together(SAVES_TAG, f"{tag}: ends"):
            staging.close()
            if save_latest and engine.is_first:
                _write_latest(directory, tag)


def _fill(engine: WithCheckpoints, new: str, client_state: Mapping[str, Any] | None,
          exclude_frozen_parameters: bool) -> None:
    """Writes what the ranks share."""
    values = engine.module.state_dict()
    if exclude_frozen_parameters:
        for name, parameter in engine.module.named_parameters(remove_duplicate=False):
            if not parameter.requires_grad:
                values.pop(name, None)
    _write(values, os.path.join(new, MODEL))
    write_names(new, engine.module, engine.optimizer)
    _write(engine.counts() | {"client_state": dict(client_state or {})},
           os.path.join(new, _ENGINE))


def _write_latest(directory: str, tag: str) -> None:
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
    if not os.path.exists(os.path.join(folder, _ENGINE)) and not is_of_deepspeed(folder):
        there = sorted(path.parent.name for path in pathlib.Path(directory).glob(f"*/{_ENGINE}"))
        raise InvalidArgumentError(
            f"there is no checkpoint of tag {tag} in {directory}; there is "
            f"{', '.join(there) or 'none'}: pass the tag of one, or none for the latest")
    return folder


def _load(engine: WithCheckpoints, folder: str, *, strict: bool, optimizer: bool, schedule: bool,
          module_only: bool, load_model: Callable[..., Any] | None) -> dict[str, Any]:
    """Takes what was saved in a folder; returns its `client_state`."""
    with_state = optimizer and not module_only
    with engine.together(LOADS_TAG, f"{os.path.basename(folder)}: reads"):
        # What the program has given as client_state is any object.
        saved = read(os.path.join(folder, _ENGINE), weights_only=False)
        values = read(os.path.join(folder, MODEL), weights_only=True)
        if with_state and (ranks := saved.get("ranks", 1)) != engine.world_size:
            raise InvalidArgumentError(
                f"{folder} has the state of {ranks} rank(s), and {engine.world_size} load it: "
                f"start {ranks}, or pass load_optimizer_states=False, with which moments begin "
                "again")
        if with_state and any(getattr(each, "is_released", False)
                              for each in engine.optimizer._shards):
            raise InvalidArgumentError(
                "the memory of the device is released; call resume_device first, and then "
                "load_checkpoint")
    with engine.together(LOADS_TAG, f"{os.path.basename(folder)}: takes"):
        if not module_only:
            engine.zero_grad()
        if with_state:
            engine.optimizer.load_state_dict(saved["groups"])
        with (engine.optimizer.replacing("load_checkpoint") if with_state
              else contextlib.nullcontext()):
            if load_model is not None:
                load_model(src=values, dst=engine.module)
            else:
                engine.module.load_state_dict(values, strict=strict)
            if with_state:
                engine.optimizer.load(os.path.join(folder, OPTIMIZER))
        if not module_only:
            if schedule and engine.lr_scheduler is not None and saved["schedule"] is not None:
                engine.lr_scheduler.load_state_dict(saved["schedule"])
            engine.take_counts(saved)
    return saved["client_state"]


def _load_other(engine: WithCheckpoints, folder: str, *, strict: bool, optimizer: bool,
                schedule: bool, module_only: bool,
                load_model: Callable[..., Any] | None) -> dict[str, Any]:
    """Does that with a checkpoint of DeepSpeed's. The loss scale of fp16 begins again."""
    name = os.path.basename(folder)
    with engine.together(LOADS_TAG, f"{name}: reads"):
        files = Saved(folder)
        saved, client_state, values = files.model, files.client_state(), files.values()
        state = read_state(files, engine.optimizer, dict(engine.module.named_parameters()),
                           strict) if optimizer and not module_only else None
        of_schedule = (_schedule_of(engine, folder, saved) if schedule and not module_only
                       else None)
    with engine.together(LOADS_TAG, f"{name}: takes"):
        if not module_only:
            engine.zero_grad()
        with (engine.optimizer.replacing("load_checkpoint") if state is not None
              else contextlib.nullcontext()):
            if load_model is not None:
                load_model(src={name: value.contiguous() for name, value in values.items()}
                           if files.is_cut else values, dst=engine.module)
            elif files.is_cut:
                take_values(engine.module, values, strict)
            else:
                engine.module.load_state_dict(values, strict=strict)
            if state is not None:
                engine.optimizer.load_state_dict(state)
        if not module_only:
            if of_schedule is not None:
                engine.lr_scheduler.load_state_dict(of_schedule)
            counts = {key: saved[key] for key in ("global_steps", "skipped_steps",
                                                  "global_samples")}
            engine.take_counts(counts | {"scale": engine._configuration.scale_state})
    return client_state


def _schedule_of(engine: WithCheckpoints, folder: str, saved: Mapping[str, Any]) -> Any:
    """Returns the state of a checkpoint of DeepSpeed's for the engine's schedule, or None. Raises
    for that of another schedule."""
    mine, theirs = engine.lr_scheduler, saved["lr_scheduler"]
    if hasattr(mine, "updates"):
        return {"updates": saved["global_steps"] - saved["skipped_steps"]}
    if mine is None or theirs is None:
        return None
    known = mine.state_dict().keys() | {"verbose"}  # of an older torch
    others = sorted(key for key in theirs if key not in known and not key.startswith("_"))
    if others:
        raise InvalidArgumentError(
            f"{folder} has the state of another schedule, with {', '.join(others)}, which a "
            f"{type(mine).__name__} has not: give initialize the one that has saved, or pass "
            "load_lr_scheduler_states=False")
    return theirs


class WithCheckpoints(torch.nn.Module):
    """An engine that saves and loads its model, its optimizer's state and its counts."""

    module: torch.nn.Module
    optimizer: OffloadedOptimizer
    lr_scheduler: Any
    micro_steps: int
    _first_micro_step: int  #: since which steps have the present number of micro-batches
    global_steps: int
    skipped_steps: int
    world_size: int
    global_rank: int
    global_samples: int
    _configuration: Any
    _loss_scaling: LossScaling

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank."""
        return self.global_rank == 0

    def together(self, call: int, part: str) -> contextlib.AbstractContextManager[None]:
        """Surrounds a part of a call that each rank makes for itself: where one raises, all do."""
        ranks = self.optimizer.ranks
        return contextlib.nullcontext() if ranks is None else ranks.together(call, checksum(part))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the step that is under way."""
        self.optimizer.zero_grad(set_to_none)

    def train_batch_size(self) -> int:
        """Examples of a step, of all ranks."""
        return (self._configuration.micro_batch * self.gradient_accumulation_steps()
                * self.world_size)

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._loss_scaling.micro_batches

    def counts(self) -> dict[str, Any]:
        """What a checkpoint has beside the model and the optimizer's state."""
        with self.optimizer.state_left_out():
            groups = self.optimizer.state_dict()
        schedule = self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None
        return {"groups": groups, "schedule": schedule,
                "global_steps": self.global_steps, "skipped_steps": self.skipped_steps,
                "global_samples": self.global_samples, "ranks": self.world_size,
                "scale": self._configuration.scale_state}

    def take_counts(self, saved: Mapping[str, Any]) -> None:
        """Counts on from there. A step that was under way begins again: a checkpoint has no
        gradients."""
        self.global_steps = saved["global_steps"]
        self.micro_steps = self.global_steps * self.gradient_accumulation_steps()
        self._first_micro_step = self.micro_steps
        self.global_samples = saved.get("global_samples",
                                        self.global_steps * self.train_batch_size())
        self.skipped_steps = saved["skipped_steps"]
        self._configuration.scale_state = saved["scale"]

    def save_checkpoint(self, save_dir: Path, tag: Any = None,
                        client_state: Mapping[str, Any] | None = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> bool:
        """Writes SAVE_DIR/TAG: the model, the optimizer's state block by block, and `client_state`.

        A checkpoint of this tag is replaced once the new one is whole. Then the file `latest` names
        it, unless `save_latest` is False. All ranks call it, with a folder that all of them see;
        `client_state` is that of the first. With `exclude_frozen_parameters` the model is saved
        without parameters that need no gradient; load it with `load_module_strict=False`.
        """
        _save(self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        return True

    def load_checkpoint(self, load_dir: Path, tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False,
                        custom_load_fn: Callable[..., Any] | None = None,
                        ) -> tuple[str | None, dict[str, Any] | None]:
        """Goes on from LOAD_DIR/TAG, by default the latest; returns its path and `client_state`, or
        (None, None) where there is no checkpoint.

        With `load_module_only` only the model is loaded, and with `load_optimizer_states=False`
        masters become the model's values and moments stay. `custom_load_fn(src=, dst=)` brings a
        state dict into the model in place of its `load_state_dict`. All ranks call it, as many as
        have saved, unless the state stays. Checkpoints that DeepSpeed has written with ZeRO 1, 2
        or 3 are taken too, by any number of ranks; the loss scale of fp16 then begins again.
        """
        with self.together(LOADS_TAG, f"{tag}: finds"):
            folder = find(load_dir, tag)
        if folder is None:
            return None, None
        load = _load_other if is_of_deepspeed(folder) else _load
        return folder, load(
            self, folder, strict=load_module_strict, optimizer=load_optimizer_states,
            schedule=load_lr_scheduler_states, module_only=load_module_only,
            load_model=custom_load_fn)
