"""Configurations of DeepSpeed beside the TrainingArguments of transformers."""
from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from spillway._documents import read_text, section_of, to_text
from spillway._load import native
from spillway._trainer_optimizers import named_by
from spillway._unused import check_unused
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedAdagrad, OffloadedAdamW, OffloadedSGD

_SECTIONS = {"optimizer", "scheduler", "zero_optimization", "fp16", "bf16", "gradient_clipping",
             "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
#: Names of `optim` that stand for optimizers of a configuration.
_OPTIM = {"adam": "adamw_torch", "lion": "lion_32bit", "adagrad": "adagrad", "sgd": "sgd"}
#: Names of `lr_scheduler_type` that stand for schedules of a configuration.
_SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear",
              "WarmupCosineLR": "cosine", "Constant": "constant", "Linear": "linear",
              "Cosine": "cosine"}
#: Keys of the section `fp16` by which DeepSpeed chooses a loss scale.
_LOSS_SCALE = ("initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
               "min_loss_scale")
#: Notes on what is left out of a configuration: the arguments say it.
_IN_ARGUMENTS = ("spillway.decay: absent", "gradient_clipping: absent", "scheduler: absent",
                 "optimizer: absent")
#: What the warm-up of the Trainer's schedules is, among the parameters of a configuration's.
_IN_A_LINE = ("warmup_type", "linear")


def read_configuration(given: Any) -> dict[str, Any] | None:
    """The configuration that is given as a path or a dict; None for anything else."""
    if isinstance(given, (str, bytes, os.PathLike)):
        text, origin = read_text(given, "spillway")
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(f"{origin} is no JSON: {error}") from None
    if isinstance(given, Mapping) and _SECTIONS & set(given):
        return copy.deepcopy(dict(given))
    return None


def _values_of(args: Any) -> dict[tuple[str, ...], Any]:
    """What the TrainingArguments say, by the path of the key in a configuration."""
    micro_batch, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
    parameters = ("optimizer", "params")
    kind, own = named_by(args)
    eps = own.get("eps", 1e-10) if kind is OffloadedAdagrad else args.adam_epsilon
    values: dict[tuple[str, ...], Any] = {
        ("train_micro_batch_size_per_gpu",): micro_batch,
        ("gradient_accumulation_steps",): steps,
        ("train_batch_size",): micro_batch * steps * args.world_size,
        ("gradient_clipping",): args.max_grad_norm,
        ("bf16", "enabled"): args.bf16, ("fp16", "enabled"): args.fp16,
        (*parameters, "lr"): args.learning_rate,
        (*parameters, "betas"): [args.adam_beta1, args.adam_beta2],
        (*parameters, "eps"): eps,
        (*parameters, "weight_decay"): args.weight_decay}
    if kind is OffloadedSGD:
        values[(*parameters, "momentum")] = own.get("momentum", 0.0)
    return values


def resolve(configuration: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Returns the configuration with the values of the arguments where it says "auto".

    Raises where another value differs from the arguments, which are what trains, and for a schedule
    that `lr_scheduler_type` does not name or whose parameters are not "auto".
    """
    resolved = copy.deepcopy(dict(configuration))
    schedule = resolved.pop("scheduler", None) or {}
    _check_schedule(schedule, args)
    differ = []
    for path, value in _values_of(args).items():
        section = resolved
        for key in path[:-1]:
            section = section_of(section, key)
        said = section.get(path[-1])
        if said == "auto":
            section[path[-1]] = value
        elif said is not None and said != value:
            differ.append(f"{'.'.join(path)} is {said}, the arguments say {value}")
    for key, said in section_of(schedule, "params").items():
        if said != "auto" and (key, said) != _IN_A_LINE:
            differ.append(f"scheduler.params.{key} is {said}; choose the schedule by "
                          "lr_scheduler_type and warmup_steps")
    if differ:
        raise InvalidArgumentError("the configuration and the TrainingArguments differ: "
                                   f"{'; '.join(differ)}. Set one of the two, or write \"auto\"")
    if args.world_size > 1:  # the engine knows one rank, and the arguments deal batches out
        resolved.pop("train_batch_size", None)
    zero = section_of(resolved, "zero_optimization")
    for key in [key for key, said in zero.items() if said == "auto"]:
        del zero[key]  # sizes of buckets and the like, which nothing here has
    return resolved


def _check_schedule(section: Mapping[str, Any], args: Any) -> None:
    """Raises unless the schedule of a configuration is the one that `lr_scheduler_type` of the
    arguments names. Warns where its warm-up is another."""
    kind = section.get("type")
    if kind is None:
        return
    said = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if said != _SCHEDULES.get(kind):
        remedy = f'set lr_scheduler_type="{_SCHEDULES[kind]}", or ' if kind in _SCHEDULES else ""
        raise InvalidArgumentError(
            f"scheduler.type is {kind}, and lr_scheduler_type of the arguments, which trains, is "
            f"{said}: {remedy}leave the section scheduler out")
    key, value = _IN_A_LINE
    warms_up = kind.startswith("Warmup") and args.get_warmup_steps(1_000_000) > 0
    if warms_up and section_of(section, "params").get(key) != value:
        warnings.warn(f"scheduler.type {kind} warms up by the logarithm of the step, and the "
                      f'Trainer in a line: write scheduler.params.{key} "{value}" if you mean that',
                      stacklevel=4)


def _check_loss_scale(section: Mapping[str, Any]) -> list[str]:
    """Returns notes on keys of the section `fp16` that a Trainer does not use. Raises for a loss
    scale that is constant."""
    if not section.get("enabled"):
        return []
    if (scale := section.get("loss_scale")) not in (None, 0, "auto"):
        raise NotSupportedError(
            f"fp16.loss_scale is {scale}, which stays as it is, and torch's GradScaler changes "
            "that of the Trainer: leave it out, or train with spillway.torch.initialize")
    unused = [f"fp16.{key}" for key in _LOSS_SCALE if section.get(key) not in (None, "auto")]
    return [f"{', '.join(unused)}: not used: torch's GradScaler scales the loss of the Trainer; it "
            "begins with 65536, halves it at an overflow and doubles it after 2000 steps without "
            "one"] if unused else []


def _check_optimizer(group: Any, section: Mapping[str, Any], args: Any) -> None:
    """Raises unless the optimizer of a configuration, parsed as `group`, is the one that `optim` of
    the arguments names. A name that is none is refused later."""
    kind, _ = named_by(args)
    said = section.get("type")
    if kind is None or not section:
        return
    if said is not None and group.optimizer != kind.kind:
        raise InvalidArgumentError(
            f"optimizer.type is {said}, and optim of the arguments stands for {kind.__name__}: set "
            f'optim="{_OPTIM[group.optimizer]}", or leave the section optimizer out')
    for key, is_on in (("adam_w_mode", group.decoupled), ("bias_correction",
                                                          group.bias_correction)):
        if kind is OffloadedAdamW and not is_on:
            raise NotSupportedError(
                f"optimizer.params.{key} is false, which no optim of the Trainer means: leave it "
                "out, or train with spillway.torch.initialize")


def _stage_of_ranks(configuration: Mapping[str, Any], args: Any) -> int | None:
    """Returns the stage that ranks train with; None where the configuration leaves it open, or one
    process trains. Raises for stage 3, which would cut parameters."""
    stage = section_of(configuration, "zero_optimization").get("stage")
    if args.world_size == 1 or stage in (None, 0):
        return None
    if stage not in (1, 2):
        raise NotSupportedError(
            f"zero_optimization.stage is {stage}, and {args.world_size} processes of the Trainer "
            "train with 1 (each rank keeps a part of the state) or 2 (and of the gradients)")
    return stage


def offload_options(configuration: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """What a resolved configuration says of where and how state is kept. Raises for what the
    Trainer does not do, and warns of what it does not need."""
    parsed = native.Configuration(to_text(configuration), "the configuration")
    _check_optimizer(parsed.group, section_of(configuration, "optimizer"), args)
    own = section_of(configuration, "spillway")
    for key, value, remedy in (
            ("decay", "all", "get_decay_parameter_names of the Trainer names what is decayed"),
            ("compute", own.get("compute"), "the model's own dtype, bf16 and fp16 say it")):
        if own.get(key) is not None and own[key] == value:
            raise NotSupportedError(f"spillway.{key} is {value}, which the Trainer does not take: "
                                    f"leave it out; {remedy}")
    notes = check_unused(configuration, parsed.nvme, "the Trainer",
                         on_cpu=args.device.type == "cpu")
    notes += _check_loss_scale(section_of(configuration, "fp16"))
    for note in (*parsed.notes, *notes):
        if not note.startswith(_IN_ARGUMENTS):
            warnings.warn(note, stacklevel=3)
    options = {"nvme": parsed.nvme, "threads": parsed.threads, "seed": parsed.seed,
               "host_memory": parsed.host_memory, "isa": own.get("isa")}
    if "state_format" in own:
        options["state_format"] = parsed.state_format
    options["stage"] = _stage_of_ranks(configuration, args)
    return {key: value for key, value in options.items() if value is not None}
