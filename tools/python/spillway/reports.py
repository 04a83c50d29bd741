"""Plans and reports: objects that print as tables and that programs can read."""
from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from spillway.errors import NotSupportedError


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


class Document:
    """A document with a text. Entries are read as attributes or with []."""

    def __init__(self, document: dict[str, Any], text: str) -> None:
        self.document = document
        self.text = text

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


_Shown = TypeVar("_Shown", bound="_WithPage")


class _WithPage(Document):
    """A document with a page, which is made when it is asked for."""

    _page: Callable[[], str] | None

    @classmethod
    def from_json(cls: type[_Shown], document: str, text: str, page: Callable[[], str]) -> _Shown:
        """Returns the object of a JSON text."""
        made = cls(json.loads(document), text)
        made._page = page
        return made

    def html(self) -> str:
        """Returns a page with charts that needs no other file, as `spillway plan --html` and
        `spillway report --html` write it. Notebooks show it. Raises `NotSupportedError` for an
        object that was pickled or copied, which has no page."""
        if self._page is None:
            raise NotSupportedError("a plan or report that was pickled or copied has no page: take "
                                    "html() of the one that plan() or train() returned")
        return self._page()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_page": None}

    def _repr_html_(self) -> str | None:
        if self._page is None:
            return None  # the text is shown
        return (f'<iframe srcdoc="{html.escape(self.html())}" style="width: 100%; height: 900px; '
                'border: 0"></iframe>')


def size_text(count: float) -> str:
    """Returns bytes in the largest unit of which there is one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


class Plan(_WithPage):
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


class Report(_WithPage):
    """A training run in numbers.

    `steps` were done by this call, up to `last_step`; `loss` is that of the last step and
    `val_loss` of the validation data, both means over targets; `tokens_per_second`,
    `predicted_step_seconds` and `measured_step_seconds` (the median) say how fast it was; sizes
    such as `host_high_water` are in bytes. `plan` is the run's `Plan` and `history` the list of its
    `Step`s.
    """

    plan: Plan
    history: list[Step]
