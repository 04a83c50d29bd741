"""Groups of parameters: the hyperparameters that torch's dictionaries and native trainers share."""
from __future__ import annotations

import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spillway._arguments import check_numbers
from spillway._documents import to_text
from spillway._load import native
from spillway.errors import CorruptDataError, InvalidArgumentError, NotSupportedError
from spillway.torch._lifetime import WithLifetime

_FILE = "groups.json"  # of a checkpoint's folder
_SEAL = re.compile(r', "crc32": "([0-9a-f]{8})"\}')  # the end of its text, over what is before

#: Keys of torch's groups; they change what is computed.
MUST_BE_OFF = ("amsgrad", "capturable", "dampening", "differentiable", "maximize", "nesterov")

#: Arguments of an optimizer that are for all its groups.
FOR_ALL = ("accumulation_steps", "deferred", "gradient_memory", "host_memory", "isa", "max_norm",
           "missing", "nvme", "process_group", "seed", "stage", "state_format", "threads")


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Returns what a group has that a file keeps: numbers, texts, and lists and dicts of them."""
    settings = {}
    for key, value in group.items():
        if key not in ("params", "param_names"):
            try:
                settings[key] = json.loads(to_text({key: value}))[key]
            except (InvalidArgumentError, TypeError, ValueError):
                continue  # an object of the program, which is not ours to save
    return settings


def _sealed(document: Mapping[str, Any]) -> str:
    """Returns a document as JSON that ends with its checksum."""
    text = to_text(document)[:-1]
    return f'{text}, "crc32": "{zlib.crc32(text.encode()):08x}"}}'


def _opened(text: str) -> dict[str, Any]:
    """Returns such a document, or one of an older version, which has `groups` alone. Raises
    ValueError for any other text."""
    end = text.rfind(", ")
    seal = _SEAL.fullmatch(text, max(end, 0))
    document = json.loads(text)
    if seal is not None and int(seal[1], 16) != zlib.crc32(text[:end].encode()):
        raise ValueError("its checksum is that of another text")
    if not isinstance(document, dict) or seal is None and list(document) != ["groups"]:
        raise ValueError("it has other keys")
    groups = document["groups"]
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("its groups are no list of objects")
    return document


def parameters_of(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Returns the parameters of all groups, or the numbers that a state has in their places."""
    return [each for group in groups for each in group["params"]]


class WithGroups(WithLifetime):
    """An optimizer whose trainers follow `param_groups`."""

    kind = ""          #: of the native update
    decoupled = False  #: weight decay acts on the parameter

    _registered: list[list[torch.Tensor]]  #: parameters of the groups that were added

    def _check_registered(self) -> None:
        """Raises if the program has changed the list of groups, or that of a group's parameters."""
        now = [list(map(id, group["params"])) for group in self.param_groups]
        if now == [list(map(id, parameters)) for parameters in self._registered]:
            return
        count = sum(map(len, self._registered))
        raise InvalidArgumentError(
            f"param_groups has {len(now)} group(s) of {sum(map(len, now))} parameter(s), which are "
            f"not, or not in their order, the {len(self._registered)} of {count} that were added: "
            "parameters come with add_param_group() alone, and stay; to leave some out, freeze "
            "them, and to move or to replace them, make a new optimizer")

    def _check_group(self, group: Mapping[str, Any], what: str = "a parameter group") -> None:
        """Raises for what torch's optimizers do and ours do not, for numbers that none can have,
        and for options that are not a group's."""
        on = [key for key in MUST_BE_OFF if group.get(key)]
        if group.get("decoupled_weight_decay", self.decoupled) != self._decouples(group):
            on.append("decoupled_weight_decay")
        for key in on:
            raise NotSupportedError(f"{what} has {key}={group[key]}, which is not supported by "
                                    f"{type(self).__name__}; leave it out")
        for key in FOR_ALL:
            if key in group:
                raise InvalidArgumentError(
                    f"{what} has {key}={group[key]!r}, which is an option for all groups: leave it "
                    f"out, and give it to {type(self).__name__}")
        check_numbers(group, f" of {what}")

    def _set_groups(self) -> None:
        for shard in self._shards:
            updates = shard.trainer.updates
            for place, number in enumerate(shard.groups):
                shard.trainer.set_group(place, self._hyperparameters(number, updates))

    def _decouples(self, group: Mapping[str, Any]) -> bool:
        return self.decoupled

    def _learning_rate(self, group: dict[str, Any], updates: int) -> float:
        return float(group["lr"])

    def _first_state(self, group: dict[str, Any], shape: torch.Size) -> torch.Tensor | None:
        return None

    def _hyperparameters(self, number: int, updates: int) -> Any:
        group = self.param_groups[number]
        self._check_group(group, f"group {number}")
        native_group = native.Group()
        native_group.optimizer = self.kind
        native_group.decoupled = self._decouples(group)
        native_group.lr = self._learning_rate(group, updates)
        # As with torch, a stray key of another optimizer's changes nothing.
        native_group.beta1, native_group.beta2 = (
            group["betas"] if "betas" in self.defaults else (group.get("momentum", 0), 0))
        native_group.eps = group.get("eps", 0.0)
        native_group.weight_decay = group["weight_decay"]
        native_group.bias_correction = group.get("bias_correction", True)
        return native_group

    def _write_groups(self, folder: str) -> None:
        """Writes the settings of the groups into a checkpoint's folder."""
        own = ("decoupled_weight_decay", self.decoupled)  # what it would be without
        text = _sealed({"groups": [_settings({key: value for key, value in group.items()
                                              if (key, value) != own})
                                   for group in self.param_groups],
                        "optimizer": type(self).__name__,
                        "decoupled": [self._decouples(group) for group in self.param_groups]})
        (pathlib.Path(folder) / _FILE).write_text(text, encoding="utf-8")

    def _read_groups(self, folder: str) -> list[dict[str, Any]]:
        """Returns settings that were written, or none where a folder is older than they are."""
        path = os.path.join(folder, _FILE)
        if not os.path.exists(path):
            return [{} for _ in self.param_groups]
        try:
            document = _opened(pathlib.Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise CorruptDataError(f"{path} has no settings of groups ({error}): load another "
                                   "checkpoint, or remove the file and set them again") from None
        groups = document["groups"]
        if len(groups) != len(self.param_groups):
            raise InvalidArgumentError(
                f"{folder} has {len(groups)} group(s) of parameters, and this optimizer has "
                f"{len(self.param_groups)}: make it with the groups of the one that saved")
        for group in groups:
            self._check_group(group)
        merged = [{**mine, **saved} for mine, saved in zip(self.param_groups, groups, strict=True)]
        now = [self._decouples(group) for group in merged]
        if document.get("decoupled", now) != now:
            raise InvalidArgumentError(
                f"{folder} was saved by {document['optimizer']}, whose weight decay acts elsewhere "
                f"(on parameters, or through gradients) than that of this {type(self).__name__}: "
                f"load it with {document['optimizer']}")
        return groups

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        """Sets the settings of the groups as `load_state_dict` does."""
        for group, settings in zip(self.param_groups, groups, strict=True):
            for key, value in settings.items():
                was_tuple = isinstance(value, list) and isinstance(group.get(key, ()), tuple)
                group[key] = tuple(value) if was_tuple else value
        self._set_groups()
