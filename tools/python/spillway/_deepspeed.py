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
        ("train_batch_size",): micro_batch * steps,
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
    that is not "auto" throughout: `lr_scheduler_type` names it.
    """
    resolved = copy.deepcopy(dict(configuration))
    differ = []
    for path, value in _values_of(args).items():
        section = resolved
        for key in path[:-1]:
            section = section.get(key, {})
        said = section.get(path[-1])
        if said == "auto":
            section[path[-1]] = value
        elif said is not None and said != value:
            differ.append(f"{'.'.join(path)} is {said}, the arguments say {value}")
    for key, said in resolved.pop("scheduler", {}).get("params", {}).items():
        if said != "auto":
            differ.append(f"scheduler.params.{key} is {said}; choose the schedule by "
                          "lr_scheduler_type and warmup_steps")
    if differ:
        raise InvalidArgumentError("the configuration and the TrainingArguments differ: "
                                   f"{'; '.join(differ)}. Set one of the two, or write \"auto\"")
    zero = resolved.get("zero_optimization", {})
    for key in [key for key, said in zero.items() if said == "auto"]:
        del zero[key]  # sizes of buckets and the like, which nothing here has
    return resolved


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
    for note in check_unused(configuration, parsed.nvme, "the Trainer",
                             on_cpu=args.device.type == "cpu"):
        warnings.warn(note, stacklevel=3)
    options = {"nvme": parsed.nvme, "threads": parsed.threads, "seed": parsed.seed,
               "host_memory": parsed.host_memory, "isa": own.get("isa")}
    if "state_format" in own:
        options["state_format"] = parsed.state_format
    return {key: value for key, value in options.items() if value is not None}
