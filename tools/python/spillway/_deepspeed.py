"""Configurations of DeepSpeed beside the TrainingArguments of transformers."""
from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any

from spillway._documents import read_text, to_text
from spillway._load import native
from spillway.errors import InvalidArgumentError

_SECTIONS = {"optimizer", "scheduler", "zero_optimization", "fp16", "bf16", "gradient_clipping",
             "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}


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
    return {("train_micro_batch_size_per_gpu",): micro_batch,
            ("gradient_accumulation_steps",): steps,
            ("train_batch_size",): micro_batch * steps,
            ("gradient_clipping",): args.max_grad_norm,
            ("bf16", "enabled"): args.bf16, ("fp16", "enabled"): args.fp16,
            (*parameters, "lr"): args.learning_rate,
            (*parameters, "betas"): [args.adam_beta1, args.adam_beta2],
            (*parameters, "eps"): args.adam_epsilon,
            (*parameters, "weight_decay"): args.weight_decay}


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


def offload_options(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What a resolved configuration says of where and how state is kept."""
    parsed = native.Configuration(to_text(configuration), "the configuration")
    options = {"nvme": parsed.nvme, "threads": parsed.threads, "seed": parsed.seed,
               "host_memory": parsed.host_memory}
    if "state_format" in configuration.get("spillway", {}):
        options["state_format"] = parsed.state_format
    return {key: value for key, value in options.items() if value is not None}
