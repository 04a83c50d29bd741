"""The program's own optimizer beside a configuration: where both say something, they agree."""
from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spillway._documents import section_of, to_text
from spillway._load import native
from spillway._paths import existing_folders
from spillway.errors import InvalidArgumentError
from spillway.torch._offloaded import OffloadedOptimizer
from spillway.torch.optimizers import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedSGD,
)

#: Optimizers of torch, and those that do the same here.
_KINDS = {torch.optim.AdamW: OffloadedAdamW, torch.optim.Adam: OffloadedAdam,
          torch.optim.Adagrad: OffloadedAdagrad, torch.optim.SGD: OffloadedSGD}
#: What an optimizer that was replaced leaves to the one in its place.
_FORWARDED = ("state_dict", "load_state_dict", "add_param_group")
#: Schedules whose rate falls until a last step.
_ENDING = ("Linear", "Cosine", "WSD", "WarmupDecayLR", "WarmupCosineLR")


def check_client(optimizer: Any, document: Mapping[str, Any], folders: list[str]) -> None:
    """Raises where a configuration, whose folders of state are `folders`, asks for what the
    program's own optimizer has not."""
    if not isinstance(optimizer, OffloadedOptimizer) and type(optimizer) not in _KINDS:
        raise InvalidArgumentError(
            f"optimizer is a {type(optimizer).__name__}; make one of spillway.torch, AdamW, Adam, "
            "Adagrad or SGD of torch.optim, or leave it to the configuration")
    differ = []
    if section_of(document, "optimizer"):
        differ.append("the section optimizer would make another")
    if isinstance(optimizer, OffloadedOptimizer):
        differ += _differences(optimizer.options(), document, folders)
    if differ:
        raise InvalidArgumentError(
            f"optimizer= is given, which trains, and the configuration has another one: "
            f"{'; '.join(differ)}. Leave one of the two out")


def _differences(options: Mapping[str, Any], document: Mapping[str, Any],
                 folders: list[str]) -> list[str]:
    differ, own = [], section_of(document, "spillway")
    for key in ("state_format", "host_memory", "threads", "seed", "isa"):
        if own.get(key) not in (None, "auto") and str(own[key]) != str(options[key]):
            differ.append(f"spillway.{key} is {own[key]}, and {key} of optimizer= {options[key]}")
    if folders and existing_folders(folders, "nvme_path") != options["nvme"]:
        differ.append(f"nvme_path is {os.pathsep.join(folders)}, and nvme of optimizer= "
                      f"{os.pathsep.join(options['nvme']) or 'none'}")
    return differ


def made_by(optimizer: Any, parameters: Iterable[Any]) -> Any:
    """Returns an optimizer that is given, or that a given function makes of the parameters."""
    is_function = callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer)
    return optimizer(list(parameters)) if is_function else optimizer


def offloaded(client: torch.optim.Optimizer, **options: Any) -> OffloadedOptimizer:
    """Returns an optimizer that does what one of torch's does, in its place. They share their
    groups and state, so that a schedule of the first one's changes rates of the other, and the
    first saves and loads what the other has."""
    kind = _KINDS[type(client)]
    known = set(inspect.signature(OffloadedOptimizer).parameters) | set(
        inspect.signature(kind).parameters)
    defaults = {key: value for key, value in client.defaults.items() if key in known}
    state = client.state_dict() if client.state else None
    optimizer = kind(client.param_groups, **defaults, **options)
    if state is not None:
        optimizer.load_state_dict(state)
        client.state.clear()

    def share(of: OffloadedOptimizer) -> None:
        client.param_groups = of.param_groups

    share(optimizer)
    optimizer.register_load_state_dict_post_hook(share)
    for name in _FORWARDED:
        setattr(client, name, functools.partial(_forward, weakref.ref(optimizer), name))
    client._opt_called = True  # schedules of torch's ask whether it makes steps
    client.register_step_pre_hook(_refuse_step)
    return optimizer


def _forward(to: weakref.ref[OffloadedOptimizer], name: str, *arguments: Any,
             **keywords: Any) -> Any:
    optimizer = to()
    if optimizer is None:
        raise InvalidArgumentError(
            f"{name}() of an optimizer whose place an offloaded one has taken, which is no more: "
            "keep the engine, or make the optimizer again")
    return getattr(optimizer, name)(*arguments, **keywords)


def _refuse_step(client: torch.optim.Optimizer, *_: Any) -> None:
    raise InvalidArgumentError(
        f"step() of the {type(client).__name__} that initialize was given, in whose place an "
        "offloaded one trains: call engine.step()")


def with_rate_of(optimizer: torch.optim.Optimizer, document: Mapping[str, Any], origin: str) -> Any:
    """Returns a configuration whose schedule is that of the program's own optimizer's rate."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise InvalidArgumentError(
            f"groups of optimizer= have the learning rates {sorted(rates)}, and the schedule of "
            "the configuration has one: give lr_scheduler=, and leave the section scheduler out")
    section = {"type": "AdamW", "params": {"lr": rates.pop()}}
    return native.Configuration(to_text({**document, "optimizer": section}), origin)


def check_end(document: Mapping[str, Any]) -> None:
    """Raises if the schedule of a configuration falls until a step that nothing names."""
    section = section_of(document, "scheduler")
    end = section_of(section, "params").get("total_num_steps")
    if section.get("type") in _ENDING and end in (None, 0, "auto"):
        said = {None: "absent", "auto": '"auto"'}.get(end, end)
        raise InvalidArgumentError(
            f"scheduler.params.total_num_steps is {said}, and the rate of {section['type']} falls "
            "until that step, which a loop of one's own has not told: write the number of its "
            "updates")


def clip(optimizer: OffloadedOptimizer, limit: float) -> None:
    """Makes the program's own optimizer clip. Raises where it clips to another norm."""
    if limit and optimizer.max_norm not in (0, limit):
        raise InvalidArgumentError(
            f"gradient_clipping is {limit}, and max_norm of the optimizer is {optimizer.max_norm}: "
            "leave one of the two out")
    optimizer.max_norm = limit or optimizer.max_norm


def only_one(args: Any, config: Any, config_params: Any) -> Any:
    """Returns the configuration, which is given in one of three ways."""
    given = {"config": config, "config_params": config_params,
             "args.deepspeed_config": getattr(args, "deepspeed_config", None)}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgumentError(f"{' and '.join(names)} are given, and one of them would be "
                                   "ignored: leave the others out")
    if not names:
        raise InvalidArgumentError("there is no configuration; give config= (a path or a dict)")
    return given[names[0]]


def check_optimizer(optimizer: OffloadedOptimizer, model: torch.nn.Module) -> None:
    """Raises if the optimizer has no parameter of the model, which would stay as it is."""
    model_has = set(map(id, model.parameters()))
    if not any(id(each) in model_has for group in optimizer.param_groups
               for each in group["params"]):
        raise InvalidArgumentError(
            "no parameter of the optimizer, or of model_parameters, is one of the model, which "
            "would not be trained: give model.parameters() of this model")


def check_schedule(lr_scheduler: Any, optimizer: OffloadedOptimizer, client: Any) -> None:
    """Raises if a schedule is that of another optimizer, whose rates would change in vain. `client`
    is the program's own."""
    of = getattr(lr_scheduler, "optimizer", optimizer)
    if of is not optimizer and of is not client:
        raise InvalidArgumentError(
            f"lr_scheduler is that of another optimizer, a {type(of).__name__}, and would change "
            "no rate here: give a function of the optimizer, lr_scheduler=lambda optimizer: "
            f"{type(lr_scheduler).__name__}(optimizer, ...)")
