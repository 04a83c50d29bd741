"""Parameters as they are registered, and what an optimizer cannot take."""
from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from spillway.errors import InvalidArgumentError, NotSupportedError

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Registered(NamedTuple):
    """A parameter, the number of its group in the optimizer, and its name in errors."""

    parameter: torch.nn.Parameter
    group: int
    name: str
    unit: int | None = None  # of a model whose parameters are streamed


def check_parameter(registered: Registered) -> None:
    """Raises for a parameter that cannot be offloaded."""
    check_frozen(registered)
    parameter, name = registered.parameter, registered.name
    if parameter.dtype not in DTYPES:
        raise NotSupportedError(
            f"{name} has elements of {parameter.dtype}; they must be float32, bfloat16 or float16: "
            "model.to(torch.float32)")


def check_frozen(registered: Registered) -> None:
    """Raises for a parameter that cannot be in a trainer's memory, whether it is trained or not."""
    parameter, name = registered.parameter, registered.name
    if parameter.device.type not in ("cpu", "cuda"):
        raise NotSupportedError(
            f"{name} is on {parameter.device}: this version offloads parameters that are CPU or "
            "CUDA tensors; make the optimizer before model.to(device)")
    if parameter.device.type == "cuda" and registered.unit is not None:
        raise NotSupportedError(
            f"{name} is on {parameter.device}: offload_model takes the parameters of blocks from "
            "the CPU and brings them to the device that it is given; call model.cpu() first, then "
            "offload_model(model, device_memory=..., device=\"cuda\")")
    if getattr(parameter, "_fsdp_flattened", False) or hasattr(parameter, "device_mesh"):
        raise NotSupportedError(
            f"{name} is sharded by FSDP or is a DTensor: leave the wrapper out, and give the "
            "optimizer process_group=torch.distributed.group.WORLD, so that it shards the state")
    if parameter.layout != torch.strided or type(parameter.data) is not torch.Tensor:
        raise NotSupportedError(f"{name} is a {type(parameter.data).__name__} with layout "
                                f"{parameter.layout}; it must be a plain dense tensor")


def check_memory(parameters: list[Registered]) -> None:
    """Raises if two parameters lie in the same memory, which moving them would separate."""
    places = sorted((entry.parameter.data_ptr(),
                     entry.parameter.data_ptr() + entry.parameter.nbytes, entry.name)
                    for entry in parameters)
    for (_, end, first), (start, _, second) in itertools.pairwise(places):
        if start < end:
            raise InvalidArgumentError(
                f"{first} and {second} are two parameters in the same memory; tie them by using "
                "one nn.Parameter in both places")


def check_unshared(registered: Registered) -> None:
    """Raises for a parameter in memory of several processes, which an optimizer leaves."""
    parameter = registered.parameter
    if parameter.device.type == "cpu" and parameter.is_shared() and (
            parameter.untyped_storage().filename is None):
        raise NotSupportedError(
            f"{registered.name} is in shared memory (share_memory(), or the model came from "
            "another process), and its values move into memory of the optimizer: train a copy "
            "(copy.deepcopy(model)), and copy its parameters into the shared model after steps")
