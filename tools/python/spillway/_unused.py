"""What a configuration asks of the native engine, and a loop of Python's has from elsewhere: it is
refused where results or memory would be others, and noted where nothing is lost."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spillway._documents import section_of
from spillway.errors import InvalidArgumentError, NotSupportedError

_STREAMED = "offload_model(model, device_memory=...) of spillway.torch streams parameters"
_MOVED = "offload_model(model, ..., activation_memory=...) of spillway.torch moves activations"
_HOST = "state is in host memory, or on disk with nvme"

#: Keys of the section `spillway` that must be off, and the remedy.
_REFUSED = {"device_memory": _STREAMED, "residency": _STREAMED, "operator_tile": _STREAMED,
            "activations": _MOVED, "checkpointing": _MOVED}
_TAKEN = {*_REFUSED, "compute", "decay", "state_format", "seed", "nvme", "host_memory", "threads",
          "isa", "state_home", "device"}


def _refuse(path: str, value: Any, caller: str, remedy: str) -> None:
    raise NotSupportedError(f"{path} is {value}, which {caller} has not: leave it out; {remedy}")


def check_unused(document: Mapping[str, Any], nvme: list[str], caller: str, *,
                 on_cpu: bool = True) -> list[str]:
    """Returns notes on what is not needed. Raises for what `caller` would have to do and does not.

    `document` is a configuration, `nvme` its folders; `on_cpu`: the model stays on the CPU.
    """
    for section, key in (("pipeline", "stages"), ("tensor_parallel", "autotp_size")):
        value = section_of(document, section).get(key)
        if value not in (None, 0, 1):
            _refuse(f"{section}.{key}", value, caller, "`spillway train` has such ranks")
    own = section_of(document, "spillway")
    for key, remedy in _REFUSED.items():
        if own.get(key) not in (None, "auto", 0):
            _refuse(f"spillway.{key}", own[key], caller, remedy)
    for key, value, remedy in (("device", "cuda", "parameters stay where they are"),
                               ("state_home", "device", _HOST)):
        if own.get(key) == value:
            _refuse(f"spillway.{key}", value, caller, remedy)
    zero = section_of(document, "zero_optimization")
    on_disk = (own.get("state_home"), section_of(zero, "offload_optimizer").get("device"))
    if "nvme" in on_disk and not nvme:
        raise InvalidArgumentError(
            f"state is to be on disk, and there is no nvme_path; {caller} has no run whose folder "
            "it could use: set zero_optimization.offload_optimizer.nvme_path")
    unused = [f"spillway.{key}" for key, value in own.items()
              if key not in _TAKEN and value is not None and not key.startswith("_")]
    unused += [f"{name}.enabled" for name in ("tensorboard", "csv_monitor")
               if section_of(document, name).get("enabled")]
    in_memory = _offloaded(document)
    if in_memory and not on_cpu:
        _refuse(in_memory[0], "on", caller, _STREAMED)
    unused += in_memory
    reason = ("the program's loop ends, saves, evaluates and logs, and what is offloaded is in "
              "host memory")
    return [f"{', '.join(unused)}: not needed: {reason}"] if unused else []


def _offloaded(document: Mapping[str, Any]) -> list[str]:
    """Paths of the keys by which parameters or activations wait in host memory."""
    zero = section_of(document, "zero_optimization")
    found = {"offload_param.device": section_of(zero, "offload_param").get("device") not in (
                 None, "none"),
             "cpu_offload_param": zero.get("cpu_offload_param"),
             "cpu_checkpointing": section_of(document, "activation_checkpointing").get(
                 "cpu_checkpointing")}
    return [path for path, is_on in found.items() if is_on]
