"""What training a model will take, before there is an optimizer or even a model."""
from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from spillway._arguments import check_format, checked_options, trainer_options
from spillway._load import native
from spillway._paths import Path, Paths, folders_of, name_or_path
from spillway.errors import InvalidArgumentError, NotSupportedError, in_names_of_python
from spillway.reports import Document, size_text
from spillway.torch._blocks import find_blocks, units_of
from spillway.torch._frozen import check_home, folders_for
from spillway.torch._quantized import Quantized, inner_tensors, is_wrapper
from spillway.torch._registered import DTYPES, bytes_beside, freed_values, memory_beside

_SHORTER = {"fp32": ("split", "bf16", "int8"), "split": ("bf16", "int8"), "bf16": ("int8",)}
_ANY_FOLDER = "/"  # where nothing is written: what state on disk would leave in memory
_TRAFFIC = {"to_device": "to the device", "from_device": "from the device",
            "disk_read": "read from disk", "disk_written": "written to disk",
            "update_traffic": "host memory, by the update"}


class Forecast(Document):
    """What a trainer will take and move.

    `host`, `device` and `disk` are the bytes that the optimizer allocates in each, listed in
    `memory` by what is there; `pinned` are those of host memory that a GPU makes the driver pin.
    `model` are bytes of the model that stay beside them: frozen parameters that are not streamed,
    and buffers. `traffic` has the bytes that one step moves. `refusal` says why the machine lacks
    something, in the words with which the optimizer would refuse, and is None if it does not;
    `fitting` then has settings with which it would fit. `step_seconds` is None without
    `pass_seconds`.
    """

    @property
    def fits(self) -> bool:
        """Whether the machine has what it takes."""
        return self["refusal"] is None


def plan(model: torch.nn.Module, params: Iterable[Any] | None = None, *,
         device_memory: str | int | None = None, blocks: list[torch.nn.Module] | None = None,
         device: str | torch.device = "cpu", dtype: torch.dtype | None = None, nvme: Paths = (),
         state_format: str = "fp32", accumulation_steps: int | None = 1, deferred: bool = False,
         host_memory: str | int | None = None, gradient_memory: str | int | None = None,
         threads: int = 0, isa: str | None = None, pass_seconds: float | None = None,
         machine: Path | None = None, frozen: str = "auto",
         frozen_nvme: Paths = ()) -> Forecast:
    """Says what an optimizer of `spillway.torch` would take for `model`, and allocates nothing.

    `model` may be on `torch.device("meta")`, where a model of any size takes no memory. `params`
    are parameters or groups of them as the optimizer would be given; without it they are all that
    need gradients. `device_memory`, `blocks`, `frozen`, `frozen_nvme` and `device` are arguments of
    `offload_model`; `device` alone is where the parameters would be. `dtype` is the element type
    that the model would be converted to. The other settings are those of the optimizer; `deferred`
    is a bool.

    With `pass_seconds`, the seconds that the forward and backward passes of a step take without an
    optimizer, the time of a step is predicted. The rates of this machine are measured, which takes
    seconds, with a file in each folder of `nvme`. `machine` is another machine, by name
    (docs/machines.md) or by a JSON file that describes it: its rates and its memory count then.
    """
    options = checked_options(
        state_format=state_format, accumulation_steps=accumulation_steps, threads=threads,
        host_memory=host_memory, gradient_memory=gradient_memory, isa=isa)
    settings = {**options, "nvme": folders_of(nvme, "nvme"), "defers_updates": bool(deferred),
                "device_memory": None if device_memory is None else str(device_memory)}
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise NotSupportedError(
            f"device is {place}: there are cpu, and cuda for NVIDIA's GPUs")
    described = None if machine is None else native.machine_of(name_or_path(machine, "machine"))
    if place.type == "cuda" and described is None and not torch.cuda.is_available():
        raise InvalidArgumentError(
            "device is cuda, and torch finds no GPU here: name the machine or a file that "
            "describes it, machine=\"h100\"")
    wanted = _Model(model, params, dtype, None if device_memory is None else (
        find_blocks(model) if blocks is None else list(blocks)))
    own = folders_of(frozen_nvme, "frozen_nvme")
    check_home(frozen, own)
    folders = folders_for(frozen, own, settings["nvme"]) if wanted.frozen_of_blocks() else []
    if folders and frozen == "auto" and _refusal(
            wanted.parts(settings, place), settings, described) is None:
        folders = []
    settings["frozen_nvme"] = folders
    parts = wanted.parts(settings, place)
    document = _document(wanted, parts, settings, described)
    document["pinned"] = document["host"] if place.type == "cuda" else 0
    if document["refusal"] is not None:
        document["fitting"] = [
            name for name, changed in _alternatives(wanted, settings)
            if _refusal(wanted.parts({**settings, **changed}, place), {**settings, **changed},
                        described) is None]
    document["step_seconds"] = None if pass_seconds is None else _seconds(
        parts, pass_seconds, described, place)
    return Forecast(document, _text(document))


class _Model:
    """Sizes of the parameters of a model, those of an element type together, as shards are."""

    def __init__(self, model: torch.nn.Module, params: Iterable[Any] | None,
                 dtype: torch.dtype | None, blocks: list[torch.nn.Module] | None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgumentError(
                f"plan is given {model!r}, of type {type(model).__name__}, where a "
                "torch.nn.Module is expected: give it the model")
        quantized = None if blocks is None else Quantized(model, blocks)
        units = {}
        if quantized is not None:
            quantized.check_blocks()
            units = units_of(model, blocks, quantized.units())
        names = {parameter: name for name, parameter in model.named_parameters()}
        self.trained: dict[torch.dtype, list[tuple[str, int, int, int | None]]] = defaultdict(list)
        seen: set[torch.Tensor] = set()
        self.values: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for group, parameters in enumerate(_groups(model, params)):
            for parameter in parameters:
                if not parameter.requires_grad or not parameter.numel() or parameter in seen:
                    continue
                seen.add(parameter)
                kind = dtype or parameter.dtype
                name = names.get(parameter, f"parameter {len(seen) - 1}")
                if kind not in DTYPES:
                    raise NotSupportedError(
                        f"{name} has elements of {kind}; they must be float32, bfloat16 or "
                        "float16: dtype=torch.bfloat16")
                self.trained[kind].append((name, group, parameter.numel(), units.get(parameter)))
                self.values[kind].append(parameter)
        if not seen:
            raise InvalidArgumentError("there is nothing to train: no parameter needs gradients")
        self.streamed = None if blocks is None else _streamed(self.trained)
        frozen = {tensor: (name, _bytes(tensor, dtype), units.get(tensor))
                  for tensor, name in names.items() if tensor not in seen and tensor.numel()}
        buffers = {tensor: _bytes(tensor, dtype) for tensor in model.buffers()}
        if quantized is None:
            self.frozen = []
            self.beside = sum(buffers.values()) + sum(count for _, count, _ in frozen.values())
            return
        self.frozen = [each for tensor, each in frozen.items() if not quantized.has(tensor)]
        self.frozen += [(part.name, part.bytes, part.unit) for part in quantized.parts]
        self.beside = sum(count for tensor, count in buffers.items() if not quantized.has(tensor))

    def frozen_of_blocks(self) -> bool:
        """Whether something frozen is of a block."""
        return any(unit is not None for _, _, unit in self.frozen)

    def parts(self, settings: dict[str, Any], place: torch.device) -> list[Any]:
        """Returns the forecast of each shard."""
        check_format(settings["state_format"], torch.bfloat16 in self.trained,
                     "give dtype=torch.bfloat16")
        return [self._part(kind, parameters, settings, place)
                for kind, parameters in self.trained.items()]

    def _part(self, kind: torch.dtype, parameters: list[tuple[str, int, int, int | None]],
              settings: dict[str, Any], place: torch.device) -> Any:
        if self.streamed is not None:
            others = sum(bytes_beside(count, other.itemsize) for other, each in self.trained.items()
                         for _, _, count, _ in each if other != self.streamed)
            settings = {**settings, "device_memory": None if kind != self.streamed else
                        memory_beside(settings["device_memory"], others)}
        options = trainer_options(settings, DTYPES[kind])
        options.freed_values = freed_values(self.values[kind], place)
        if place.type == "cuda":
            options.device = "cuda"
            options.device_index = place.index or 0
        groups = sorted({group for _, group, _, _ in parameters})
        options.groups = [native.Group() for _ in groups]
        return native.Forecast(options, [(name, groups.index(group), count, unit)
                                         for name, group, count, unit in parameters],
                               self.frozen if kind == self.streamed else [])


def _streamed(trained: dict[torch.dtype, list[tuple[str, int, int, int | None]]]) -> torch.dtype:
    """Returns the element type of what is trained in blocks, or the first one."""
    of_blocks = [kind for kind, parameters in trained.items()
                 if any(unit is not None for _, _, _, unit in parameters)]
    if len(of_blocks) > 1:
        raise NotSupportedError("what is trained of the blocks of an offloaded model is of one "
                                "element type; give dtype=")
    return (of_blocks or list(trained))[0]


def _groups(model: torch.nn.Module, params: Iterable[Any] | None) -> list[list[torch.Tensor]]:
    """Returns the parameters of each group, as torch.optim reads them."""
    if params is None:
        return [list(model.parameters())]
    given = [each[1] if isinstance(each, tuple) else each for each in params]
    if not any(isinstance(each, dict) for each in given):
        return [given]
    return [[each[1] if isinstance(each, tuple) else each for each in (
        [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"])]
        for group in given]


def _bytes(tensor: torch.Tensor, dtype: torch.dtype | None) -> int:
    if is_wrapper(tensor):
        return sum(inner.nbytes for _, inner in inner_tensors(tensor, ""))
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.numel() * kind.itemsize


def _alternatives(wanted: _Model, settings: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Settings that take less memory, and how they are written."""
    formats = _SHORTER.get(settings["state_format"], ())
    for short in formats if torch.bfloat16 in wanted.trained else ():
        yield f'state_format="{short}"', {"state_format": short}
    if wanted.frozen_of_blocks() and not settings["frozen_nvme"]:
        yield 'frozen="nvme"', {"frozen_nvme": [_ANY_FOLDER]}
        if not settings["nvme"]:
            yield ('frozen="nvme" and nvme=[...]',
                   {"frozen_nvme": [_ANY_FOLDER], "nvme": [_ANY_FOLDER]})
    if not settings["nvme"]:
        yield "nvme=[...]", {"nvme": [_ANY_FOLDER]}
        for short in formats if torch.bfloat16 in wanted.trained else ():
            yield (f'nvme=[...] and state_format="{short}"',
                   {"nvme": [_ANY_FOLDER], "state_format": short})


def _sums(parts: list[Any]) -> dict[str, dict[str, int]]:
    """Bytes by tier and by what is there."""
    sums: dict[str, dict[str, int]] = {"host": {}, "device": {}, "nvme": {}}
    for part in parts:
        for tier, what, count in part.memory:
            sums[tier][what] = sums[tier].get(what, 0) + count
    return sums


def _refusal(parts: list[Any], settings: dict[str, Any], machine: Any) -> str | None:
    """Returns what the machine lacks."""
    totals = {tier: sum(items.values()) for tier, items in _sums(parts).items()}
    if machine is not None:
        has = {"host": machine.host, "device": machine.device, "nvme": machine.disk}
        names = {"host": "host memory", "device": "device memory", "nvme": "disks"}
        for tier, needed in totals.items():
            if needed > has[tier]:
                return (f"does not fit: {size_text(needed)} of {names[tier]} are needed, and "
                        f"{machine.name} has {size_text(has[tier])}")
        return None
    taken = 0
    for part in parts:
        if (refusal := part.refusal(taken)) is not None:
            return in_names_of_python(refusal)
        taken += sum(count for tier, _, count in part.memory if tier == "host")
    folders = {_there(folder): None for key in ("nvme", "frozen_nvme")
               for folder in settings.get(key, [])}
    if folders and _ANY_FOLDER not in folders:
        there = {os.stat(folder).st_dev: shutil.disk_usage(folder).free for folder in folders}
        if totals["nvme"] > sum(there.values()):
            return (f"does not fit: {size_text(totals['nvme'])} of disk space are needed, and "
                    f"{', '.join(folders)} have {size_text(sum(there.values()))} free; free some, "
                    "or name more folders in nvme=")
    return None


def _there(folder: str) -> str:
    """Returns a folder, or the one that it will be made in."""
    return os.path.dirname(folder) if not os.path.isdir(folder) else folder


def _seconds(parts: list[Any], pass_seconds: float, machine: Any, place: torch.device) -> float:
    """Predicts the time of a step. Shards are updated one after the other."""
    sizes = [sum(count for _, _, count in part.memory) for part in parts]
    seconds = 0.0
    for part, size in zip(parts, sizes, strict=True):
        rates = part.measure() if machine is None else machine.rates
        if place.type == "cuda" and not rates.to_device:
            raise NotSupportedError(
                "the link of this GPU is not measured here: name the machine or a file that "
                "describes it, machine=\"h100\", or leave pass_seconds out")
        seconds += part.step_seconds(rates, pass_seconds * size / sum(sizes))
    return seconds


def _document(wanted: _Model, parts: list[Any], settings: dict[str, Any],
              machine: Any) -> dict[str, Any]:
    sums = _sums(parts)
    totals = {tier: sum(items.values()) for tier, items in sums.items()}
    return {"parameters": sum(count for each in wanted.trained.values() for _, _, count, _ in each),
            "host": totals["host"], "device": totals["device"], "disk": totals["nvme"],
            "model": wanted.beside, "memory": sums,
            "traffic": {key: sum(getattr(part, key) for part in parts) for key in _TRAFFIC},
            "refusal": _refusal(parts, settings, machine), "fitting": []}


def _text(document: dict[str, Any]) -> str:
    """The forecast as a table."""
    lines = [f"{document['parameters']:,} trained parameters"]
    for tier, name in (("host", "host memory"), ("device", "device memory"), ("nvme", "disk")):
        items = document["memory"][tier]
        if items:
            lines.append(f"{name:28} {size_text(sum(items.values())):>12}")
            lines += [f"  {what:26} {size_text(count):>12}"
                      for what, count in sorted(items.items(), key=lambda item: -item[1])]
    if document["pinned"]:
        lines.append(f"{'pinned of host memory':28} {size_text(document['pinned']):>12}")
    lines.append(f"{'beside it, of the model':28} {size_text(document['model']):>12}")
    lines.append("each step moves")
    lines += [f"  {name:26} {size_text(document['traffic'][key]):>12}"
              for key, name in _TRAFFIC.items() if document["traffic"][key]]
    if document.get("step_seconds") is not None:
        lines.append(f"{'seconds of a step':28} {document['step_seconds']:12.4f}")
    if document["refusal"] is None:
        lines.append("fits")
    else:
        lines.append(document["refusal"])
        lines.append("would fit: " + ("; ".join(document["fitting"]) or "no setting of the state"))
    return "\n".join(lines)
