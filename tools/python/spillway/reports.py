"""Plans and reports: objects that print as tables and that programs can read."""
from __future__ import annotations

import html
import json
from typing import Any, NamedTuple, TypeVar


class Step(NamedTuple):
    """What one step of a run did."""

    step: int            #: from 1
    loss: float          #: mean over the step's targets, before the update
    grad_norm: float     #: of all parameters, before clipping
    lr: float            #: learning rate of this step's update
    tokens: int          #: targets of the step
    seconds: float       #: wall time
    skipped: bool        #: a gradient was not finite; the state did not change


class Export(NamedTuple):
    """What `spillway.export` wrote."""

    step: int            #: of the run
    parameters: int      #: how many
    dtype: str           #: of the weights: fp32, bf16 or fp16


_Document = TypeVar("_Document", bound="Document")


class Document:
    """A document with a text. Entries are read as attributes or with []."""

    def __init__(self, document: dict[str, Any], text: str) -> None:
        self.document = document
        self.text = text

    @classmethod
    def from_json(cls: type[_Document], document: str, text: str) -> _Document:
        """Returns the object of a JSON text."""
        return cls(json.loads(document), text)

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["document"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name}; it has "
                                 f"{', '.join(self.__dict__.get('document', {}))}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.document]

    def __repr__(self) -> str:
        return self.text.rstrip("\n")


def _rows(rows: list[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return "".join(f"<tr>{row}</tr>" for row in cells)


def size_text(count: float) -> str:
    """Returns bytes in the largest unit of which there is one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


class Plan(Document):
    """Where everything of a training step lives, and how long a step is expected to take.

    `step_seconds` is the predicted time of a step, `tokens_per_step` its targets, `memory` holds
    the bytes and the budget of each tier ("device", "host", "nvme"), `blocks` the placement of each
    block, `lanes` how long each lane works and how long the device waits for it, `bounding_lane`
    the lane that bounds the step.
    """

    @property
    def tokens_per_second(self) -> float:
        """The predicted rate."""
        return self["tokens_per_step"] / self["step_seconds"]

    def _repr_html_(self) -> str:
        memory = [(tier, item, size_text(count)) for tier, entry in self["memory"].items()
                  for item, count in entry.get("items", {}).items()]
        lanes = [(lane, f"{use['busy_seconds']:.4f} s", f"{use['exposed_seconds']:.4f} s")
                 for lane, use in self["lanes"].items() if use["busy_seconds"] > 0]
        return (f"<p>{self['parameters'] / 1e6:.2f} M parameters, {self['step_seconds']:.4f} s a "
                f"step, {self.tokens_per_second:.0f} tokens/s, bounded by "
                f"{html.escape(self['bounding_lane'])}</p>"
                f"<table><thead><tr><th>tier</th><th>what</th><th>size</th></tr></thead>"
                f"<tbody>{_rows(memory)}</tbody></table>"
                f"<table><thead><tr><th>lane</th><th>busy</th><th>exposed</th></tr></thead>"
                f"<tbody>{_rows(lanes)}</tbody></table>")


class Report(Document):
    """A training run in numbers.

    `steps` were done by this call, up to `last_step`; `loss` is that of the last step and
    `val_loss` of the validation data, both means over targets; `tokens_per_second`,
    `predicted_step_seconds` and `measured_step_seconds` (the median) say how fast it was; sizes
    such as `host_high_water` are in bytes. `plan` is the run's `Plan` and `history` the list of its
    `Step`s.
    """

    plan: Plan
    history: list[Step]

    def _repr_html_(self) -> str:
        rows = [(key, str(value)) for key, value in self.document.items()]
        return f"<table><tbody>{_rows(rows)}</tbody></table>"
