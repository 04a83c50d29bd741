"""Parameters as they are registered, and what an optimizer cannot take."""
from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._taken_data import data_of

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


Others = tuple[torch.Tensor, str]  #: a parameter, and what errors call it


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
    if parameter.layout != torch.strided or type(data_of(parameter)) is not torch.Tensor:
        raise NotSupportedError(f"{name} is a {type(data_of(parameter)).__name__} with layout "
                                f"{parameter.layout}; it must be a plain dense tensor")
    reach = 1 + sum((size - 1) * step for size, step in
                    zip(parameter.shape, parameter.stride(), strict=True))
    if parameter.numel() > reach:
        raise NotSupportedError(
            f"several elements of {name} lie in the same memory, as after expand or as_strided, "
            "and would be updated apart: make the nn.Parameter of a contiguous tensor")


def names_of(groups: list[dict[str, Any]]) -> list[list[str]]:
    """Returns what errors and checkpoints call the parameters of groups. Names of the program are
    those of modules, perhaps of several: a later one of the same name has its place behind it."""
    seen: set[str] = set()
    names: list[list[str]] = []
    for number, group in enumerate(groups):
        names.append([])
        for place in range(len(group["params"])):
            where = f"parameter {place} of group {number}"
            name = group["param_names"][place] if group.get("param_names") else where
            names[-1].append(f"{name} ({where})" if name in seen else name)
            seen.add(name)
    return names


def references_of(tensor: torch.Tensor) -> int:
    """Returns how many tensors, of torch itself too, have this memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def may_be_shared(parameter: torch.Tensor) -> bool:
    """Whether other tensors have memory of a parameter."""
    return references_of(parameter) > 2  # itself, and the storage that the call looks at


def freed_values(parameters: Iterable[torch.Tensor], place: torch.device) -> int:
    """Returns the bytes that are free once the values of parameters have moved to memory of an
    optimizer: of those on the CPU that nobody shares. A GPU's driver pins all of that memory
    before."""
    if place.type != "cpu":
        return 0
    return sum(parameter.nbytes for parameter in parameters
               if parameter.device.type == "cpu" and not may_be_shared(parameter))


def bytes_beside(count: int, itemsize: int) -> int:
    """Returns the bytes that a parameter of so many elements takes on the device beside streamed
    ones: a trainer has whole leaves of each."""
    leaf = native.leaf_parameters
    return -(-count // leaf) * leaf * itemsize


def memory_beside(device_memory: str, others: int) -> str:
    """Returns what is left of a budget beside that many bytes."""
    return str(max(native.parse_bytes(device_memory) - others, 0)) if others else device_memory


def check_memory(parameters: list[Registered], others: Iterable[Others] = ()) -> None:
    """Raises if one of these lies in the memory of another one, or of one of the others."""
    mine = {id(entry.parameter) for entry in parameters}
    places = sorted(itertools.chain(
        ((*_span(entry.parameter), True, entry.name) for entry in parameters),
        ((*_span(parameter), False, name) for parameter, name in others
         if id(parameter) not in mine)))
    reached = {True: (0, ""), False: (0, "")}
    for start, end, is_mine, name in places:
        for is_other_mine, (until, other) in reached.items():
            if start < until and (is_mine or is_other_mine):
                raise InvalidArgumentError(
                    f"{other} and {name} are two parameters in the same memory, and would be "
                    "updated apart: use one nn.Parameter in both places before you make the "
                    "optimizer, or write p.copy_(values) in torch.no_grad() instead of p.data = "
                    "values")
        reached[is_mine] = max(reached[is_mine], (end, name))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def check_unshared(registered: Registered) -> None:
    """Raises for a parameter in memory of several processes, which an optimizer leaves."""
    parameter = registered.parameter
    if parameter.device.type == "cpu" and parameter.is_shared() and (
            parameter.untyped_storage().filename is None):
        raise NotSupportedError(
            f"{registered.name} is in shared memory (share_memory(), or the model came from "
            "another process), and its values move into memory of the optimizer: train a copy "
            "(copy.deepcopy(model)), and copy its parameters into the shared model after steps")


def check_values(model: torch.nn.Module) -> None:
    """Raises for a model whose tensors have no values."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"{name} is on meta, and has no values: call spillway.torch.load_checkpoint(model, "
                "folder), or give the model its values before it is offloaded")


def check_untransformed(unit: int) -> None:
    """Raises where a pass is transformed or traced, and its parameters would be read later."""
    transforms = torch._C._functorch.peek_interpreter_stack() is not None
    if transforms or torch.jit.is_tracing():
        what = "torch.func (grad, vmap, jvp)" if transforms else "torch.jit.trace"
        raise NotSupportedError(
            f"{what} goes through block {unit}, whose parameters are on the device in its "
            "passes alone: use a model that is not offloaded, with the state_dict() of this "
            "one; loss.backward() and torch.autograd.grad work here")
