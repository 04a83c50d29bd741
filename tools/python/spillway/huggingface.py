"""The Trainer of transformers, and those that are made of it, with an offloaded optimizer.

    from spillway.huggingface import SpillwayTrainer
    trainer = SpillwayTrainer(model=model, args=args, train_dataset=data,
                              spillway={"nvme": ["/disk"], "state_format": "int8"})

For a trainer of another library, put `Offloaded` in front of it:
`class Mine(Offloaded, trl.SFTTrainer): pass`.
"""
from __future__ import annotations

import os
import warnings
import weakref
import zlib
from typing import Any

import torch
import torch.distributed as dist
import transformers

from spillway._deepspeed import offload_options, read_configuration, resolve
from spillway._trainer_optimizers import choose
from spillway._trainer_placement import leave_in_place
from spillway._trainer_ranks import (
    check_group,
    check_ranks,
    group_of_ranks,
    has_saved_state,
    share_untrained,
    take_stage,
)
from spillway._trainer_streaming import (
    check_streaming,
    of_any_model,
    is_streamed,
    keep_no_casts,
    stream,
    take_streaming,
)
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedOptimizer
from spillway.torch._alone import check_unwrapped, processes

__all__ = ["Offloaded", "SpillwayTrainer"]

_FOLDER = "spillway"  # of the state, in a checkpoint of the Trainer
_GROUPS = "optimizer.pt"
_SCHEDULE = "scheduler.pt"


def _checksum(tensor: torch.Tensor) -> int:
    """Of its bits. A comparison with it needs no copy of a model."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy())


class StateIsInTheFolderSpillway:
    """Stands for the state in the file optimizer.pt of a checkpoint.

    A Trainer without `Offloaded` would go on with fresh moments. It loads that file with
    `weights_only=True`, which names this class and refuses it: resume with SpillwayTrainer.
    """


class Offloaded:
    """Makes the optimizer of a Trainer an offloaded one.

    `spillway` has the arguments of `OffloadedOptimizer`: `nvme`, `state_format`, `threads`,
    `deferred=True` and so on; or it is a configuration of DeepSpeed (its path, or a dict with a
    section such as `zero_optimization`), whose "auto" values come from the arguments and whose
    others must be equal to them, as `TrainingArguments(deepspeed=...)` asks for. Everything else
    comes from the TrainingArguments: the optimizer (AdamW, Lion, Adagrad or SGD, by `optim`), its
    hyperparameters, weight decay by group, accumulation and `max_grad_norm`. Checkpoints hold the
    state in the folder `spillway`, written block by block. `optimizers=` may have an optimizer of
    `spillway.torch` in place of `spillway`.

    With `device_memory`, `activation_memory`, `activation_window` and `blocks`, which are those of
    `offload_model`, the model is streamed through the device that the Trainer computes on:
    `args.device`, the GPU, or a part of host memory. So is one that the program has offloaded
    itself. A reference model, as that of DPO, is streamed through as much again.

    Several processes, as torchrun starts them, train together as ranks, with the model on each, or
    with one copy a machine where it is streamed; `stage` is that of the optimizer.
    """

    optimizer: Any

    def __init__(self, *arguments: Any,
                 spillway: str | os.PathLike[str] | dict[str, Any] | None = None,
                 **keywords: Any) -> None:
        self._deepspeed = read_configuration(spillway)
        self._spillway = {} if self._deepspeed is not None else dict(spillway or {})
        for key in ("accumulation_steps", "max_norm"):
            if key in self._spillway:
                raise InvalidArgumentError(
                    f"{key} of the Trainer comes from its arguments: set "
                    "gradient_accumulation_steps and max_grad_norm there")
        if not isinstance(self._spillway.get("deferred", False), bool):
            raise InvalidArgumentError(
                f"deferred of the Trainer is {self._spillway['deferred']!r}; it is True or False, "
                "for the module is the Trainer's model")
        self._stage = take_stage(self._spillway)
        self._streaming = take_streaming(
            self._spillway, keywords.get("model", next(iter(arguments), None)))
        super().__init__(*arguments, **keywords)
        self._check_deepspeed()
        if self.optimizer is not None:
            self._check_optimizer(spillway)
        check_unwrapped(self.model, type(self).__name__)
        if self._deepspeed is not None:
            self._spillway = offload_options(resolve(self._deepspeed, self.args),
                                             self.args)
            self._stage = self._spillway.pop("stage", self._stage)

    def _check_deepspeed(self) -> None:
        """Raises if DeepSpeed would train."""
        if getattr(self.args, "deepspeed", None) or getattr(self, "is_deepspeed_enabled", False):
            raise InvalidArgumentError(
                "DeepSpeed is on, by deepspeed of the TrainingArguments or by accelerate's "
                "launcher, and would keep the state itself: leave it out, and give its "
                'configuration as spillway="ds_config.json"')

    def _check_optimizer(self, spillway: Any) -> None:
        """Raises if an optimizer that is given is none of ours, or other options are given too."""
        given = self._offloaded()
        if not isinstance(given, OffloadedOptimizer):
            raise InvalidArgumentError(
                f"optimizers= has the optimizer {type(given).__name__}, whose state is not "
                "offloaded: leave it out and name one by optim of the arguments, or give "
                "OffloadedAdamW(..., accumulation_steps=None)")
        if spillway:
            raise InvalidArgumentError(
                f"spillway= is given beside an {type(given).__name__} in optimizers=, which has "
                "options of its own: give them to that optimizer, or leave optimizers= out")
        limit = self.args.max_grad_norm or 0
        if given.max_norm not in (0, limit):
            raise InvalidArgumentError(
                f"max_norm of the optimizer is {given.max_norm}, and max_grad_norm of the "
                f"arguments, which clips, is {limit}: set max_grad_norm, and leave max_norm out")
        check_group(given)

    # Where models are.

    def create_accelerator_and_postprocess(self) -> None:
        """Makes accelerate, which is to leave models where they are and as they are."""
        super().create_accelerator_and_postprocess()
        check_ranks(self.args, self.accelerator, type(self).__name__)
        if self._streaming or is_streamed(self.model):
            check_streaming(self.args, self.accelerator)
            keep_no_casts(self.accelerator)
        trainer = weakref.ref(self)

        def streams(model: torch.nn.Module) -> bool:
            return (alive := trainer()) is not None and alive._stream(model)

        leave_in_place(self.accelerator, streams)

    def _move_model_to_device(self, model: torch.nn.Module, device: torch.device) -> None:
        if not self._stream(model):
            super()._move_model_to_device(model, device)

    def _stream(self, model: torch.nn.Module) -> bool:
        """Offloads a model if this Trainer streams; returns whether the model is streamed."""
        if not self._streaming and not is_streamed(model):
            return False
        streaming = self._streaming
        if self.model not in (None, model):  # a reference: of other blocks, and saves nothing
            streaming = {key: streaming.get(key) for key in of_any_model(streaming)}
        stream(model, streaming, self.args.device)
        return True

    # The optimizer.

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Makes the optimizer that the arguments name, offloaded."""
        model = self.model if model is None else model
        if self.optimizer is None:
            self._check_choice()
            self._stream(model)
            options = dict(self._spillway)
            if options.pop("deferred", False):
                options["deferred"] = model
            if processes() > 1:
                options.update(process_group=group_of_ranks(is_streamed(model)),
                               stage=self._stage)
            kind, hyperparameters, options = choose(self.args, options)
            self.optimizer = kind(self._groups(model), lr=self.args.learning_rate,
                                  accumulation_steps=None, **hyperparameters, **options)
        if processes() > 1:
            share_untrained(model, is_streamed(model))
        return self.optimizer

    def _check_choice(self) -> None:
        """Raises if the program chooses an optimizer by other means than `optim`."""
        chosen = ""
        if getattr(self, "optimizer_cls_and_kwargs", None) is not None:
            chosen = "optimizer_cls_and_kwargs is given"
        kinds = type(self).__mro__
        behind = kinds[kinds.index(Offloaded) + 1:]  # those in front have called this one
        for name, candidates in (("get_optimizer_cls_and_kwargs", kinds),
                                 ("create_optimizer", behind)):
            first = next(kind for kind in candidates if name in vars(kind))
            if first is not transformers.Trainer:
                chosen = chosen or f"{first.__name__}.{name} is not the Trainer's"
        if chosen:
            raise NotSupportedError(
                f"{chosen}, and its optimizer would not be offloaded: name one by optim and "
                "optim_args of the arguments, groups by get_decay_parameter_names, or pass "
                "optimizers=(OffloadedAdamW(..., accumulation_steps=None), None)")

    def _groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        decayed = set(self.get_decay_parameter_names(model))
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        groups = [{"params": [entry for entry in named if entry[0] in decayed],
                   "weight_decay": self.args.weight_decay},
                  {"params": [entry for entry in named if entry[0] not in decayed],
                   "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def _offloaded(self) -> OffloadedOptimizer:
        """The optimizer, without what accelerate has put around it."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        return self._offloaded().clip_grad_norm_(self.args.max_grad_norm, self.accelerator.scaler)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is None:
            grad_norm = self._offloaded().clip_grad_norm_(0.0, self.accelerator.scaler)
        return float(grad_norm)

    def save_model(self, *arguments: Any, **keywords: Any) -> None:
        """Saves the model. The first process alone reads it; all wait for deferred updates."""
        if isinstance(optimizer := self._offloaded(), OffloadedOptimizer):
            optimizer.synchronize()
        super().save_model(*arguments, **keywords)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._offloaded().state_left_out(StateIsInTheFolderSpillway()):
            super()._save_optimizer_and_scheduler(output_dir)
        self._offloaded().save(os.path.join(output_dir, _FOLDER))
        if processes() > 1:  # the Trainer's own state, without which none resumes, is the last
            dist.barrier()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with torch.serialization.safe_globals([StateIsInTheFolderSpillway]):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if has_saved_state(os.path.join(checkpoint, _FOLDER)):
            self._load_schedule(checkpoint)
            self._load_state(checkpoint)
        elif not self._offloaded().has_state():
            warnings.warn(f"{checkpoint} has no state of an optimizer, neither in the folder "
                          f"{_FOLDER} nor in optimizer.pt: training goes on with fresh moments",
                          stacklevel=2)

    def _load_schedule(self, checkpoint: str) -> None:
        """Loads the schedule where the Trainer has not, for it needs both files, and the settings
        of groups are in our folder too."""
        there = [os.path.isfile(os.path.join(checkpoint, name)) for name in (_GROUPS, _SCHEDULE)]
        if not there[1]:
            warnings.warn(f"{checkpoint} has the optimizer's state in the folder {_FOLDER} and no "
                          f"{_SCHEDULE}: the schedule of the learning rate begins again; resume "
                          "from a whole checkpoint to go on with it", stacklevel=3)
        elif not there[0]:
            self.lr_scheduler.load_state_dict(torch.load(
                os.path.join(checkpoint, _SCHEDULE), map_location="cpu", weights_only=True))

    def _load_state(self, checkpoint: str) -> None:
        """Loads the state. Where the model of the checkpoint has other weights than the state was
        saved with, they become the masters, as a Trainer without `Offloaded` trains them."""
        optimizer = self._offloaded()
        optimizer.synchronize()
        given = self._checksums()
        optimizer.load(os.path.join(checkpoint, _FOLDER))
        masters = self._checksums()
        if given == masters:
            return
        self._load_from_checkpoint(checkpoint)  # again: the state has replaced its weights
        others = [name for name, each in self._checksums().items() if each != masters[name]]
        if others:
            warnings.warn(f"the model in {checkpoint} has other weights than the state in its "
                          f"folder {_FOLDER} was saved with, in {len(others)} parameters, such as "
                          f"{others[0]}: training goes on with these weights and the state's "
                          "moments; if you have not changed them, the folder is that of another "
                          "checkpoint", stacklevel=3)

    def _checksums(self) -> dict[str, int]:
        """Those of the parameters that the optimizer has, by name."""
        mine = {p for group in self._offloaded().param_groups for p in group["params"]}
        return {name: _checksum(p) for name, p in self.model.named_parameters() if p in mine}


class SpillwayTrainer(Offloaded, transformers.Trainer):
    """A Trainer with an offloaded optimizer; see `Offloaded`."""
