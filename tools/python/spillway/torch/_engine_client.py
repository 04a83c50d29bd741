"""The program's own optimizer beside a configuration: where both say something, they agree."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from spillway._documents import section_of, to_text
from spillway._load import native
from spillway._paths import existing_folders
from spillway.errors import InvalidArgumentError
from spillway.torch._offloaded import OffloadedOptimizer


def check_client(optimizer: Any, document: Mapping[str, Any], folders: list[str]) -> None:
    """Raises where a configuration, whose folders of state are `folders`, asks for what the
    program's own optimizer has not."""
    if not isinstance(optimizer, OffloadedOptimizer):
        raise InvalidArgumentError(
            f"optimizer is a {type(optimizer).__name__}; make one of spillway.torch, or leave it "
            "to the configuration")
    differ = []
    if section_of(document, "optimizer"):
        differ.append("the section optimizer would make another")
    own, options = section_of(document, "spillway"), optimizer.options()
    for key in ("state_format", "host_memory", "threads", "seed", "isa"):
        if own.get(key) not in (None, "auto") and str(own[key]) != str(options[key]):
            differ.append(f"spillway.{key} is {own[key]}, and {key} of optimizer= {options[key]}")
    if folders and existing_folders(folders, "nvme_path") != options["nvme"]:
        differ.append(f"nvme_path is {os.pathsep.join(folders)}, and nvme of optimizer= "
                      f"{os.pathsep.join(options['nvme']) or 'none'}")
    if differ:
        raise InvalidArgumentError(
            f"optimizer= is given, which trains, and the configuration has another one: "
            f"{'; '.join(differ)}. Leave one of the two out")


def with_rate_of(optimizer: OffloadedOptimizer, document: Mapping[str, Any], origin: str) -> Any:
    """Returns a configuration whose schedule is that of the program's own optimizer's rate."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise InvalidArgumentError(
            f"groups of optimizer= have the learning rates {sorted(rates)}, and the schedule of "
            "the configuration has one: give lr_scheduler=, and leave the section scheduler out")
    section = {"type": "AdamW", "params": {"lr": rates.pop()}}
    return native.Configuration(to_text({**document, "optimizer": section}), origin)


def clip(optimizer: OffloadedOptimizer, limit: float) -> None:
    """Makes the program's own optimizer clip. Raises where it clips to another norm."""
    if limit and optimizer.max_norm not in (0, limit):
        raise InvalidArgumentError(
            f"gradient_clipping is {limit}, and max_norm of the optimizer is {optimizer.max_norm}: "
            "leave one of the two out")
    optimizer.max_norm = limit or optimizer.max_norm
