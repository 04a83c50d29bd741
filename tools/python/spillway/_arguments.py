"""Arguments that optimizers share, checked before anything is built."""
from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from spillway._load import native
from spillway.errors import InvalidArgumentError

_FORMATS = ("fp32", "split", "bf16", "int8")
_MOST_PASSES = 10**6
_MOST_THREADS = 4096
_FRACTION = (1.0, "a number of at least 0 and below 1")
_NOT_NEGATIVE = (math.inf, "a finite number of at least 0")

#: Numbers that optimizers and groups have: below what, and in words.
_NUMBERS = {"lr": _NOT_NEGATIVE, "eps": _NOT_NEGATIVE, "weight_decay": _NOT_NEGATIVE,
            "lr_decay": _NOT_NEGATIVE, "initial_accumulator_value": _NOT_NEGATIVE,
            "momentum": _FRACTION, "b1": _FRACTION, "b2": _FRACTION}


def checked_norm(max_norm: Any) -> float:
    """Returns the limit of a gradient's norm. Raises for what is none."""
    try:
        limit = float(max_norm)
    except (TypeError, ValueError):
        limit = -1.0
    if not limit >= 0:
        raise InvalidArgumentError(
            f"max_norm is {max_norm!r}; it must be above 0, or 0 for no clipping")
    return limit


def _number(value: Any) -> float:
    """Returns a number as Python's, or NaN."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several elements
        return math.nan


def check_numbers(values: Mapping[str, Any], of: str = "") -> None:
    """Raises for a number that no optimizer of ours, nor of torch, can have, and for a flag that is
    none. `of` follows its name in errors."""
    for key, (below, words) in _NUMBERS.items():
        if key in values and not 0 <= _number(values[key]) < below:
            raise InvalidArgumentError(f"{key}{of} is {values[key]!r}; it must be {words}")
    if "betas" in values:
        try:
            beta1, beta2 = values["betas"][:]  # not of an iterator, which is read once
        except (TypeError, ValueError, LookupError):
            beta1 = beta2 = math.nan
        if not (0 <= _number(beta1) < 1 and 0 <= _number(beta2) < 1):
            raise InvalidArgumentError(f"betas{of} is {values['betas']!r}; it must be two numbers, "
                                       "each at least 0 and below 1")
    if not isinstance(values.get("bias_correction", True), bool):
        raise InvalidArgumentError(
            f"bias_correction{of} is {values['bias_correction']!r}; it must be True or False")


def _integer(value: Any, name: str, least: int, most: int, remedy: str) -> int:
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidArgumentError(
            f"{name} is {value!r}; it is a whole number from {least} to {most}{remedy}")
    return number


def _size(value: Any, name: str) -> str | None:
    if value is None:
        return None
    try:
        native.parse_bytes(str(value))
    except InvalidArgumentError:
        raise InvalidArgumentError(f"{name} is {value!r}, which is not a size; write 512MiB, 24GB "
                                   "or a number of bytes") from None
    return str(value)


def checked_options(*, state_format: Any = "fp32", accumulation_steps: Any = 1,
                    host_memory: Any = None, gradient_memory: Any = None, threads: Any = 0,
                    isa: Any = None, seed: Any = 1234) -> dict[str, Any]:
    """Returns options of an optimizer by the names of the trainer's. Raises for what is none."""
    if state_format not in _FORMATS:
        raise InvalidArgumentError(
            f"state_format is {state_format!r}; it is one of {', '.join(_FORMATS)}")
    if isa is not None:
        try:
            native.TrainerOptions().isa = isa
        except (TypeError, InvalidArgumentError) as error:
            remedy = error if isinstance(error, InvalidArgumentError) else "give its name, a str"
            raise InvalidArgumentError(f"isa is {isa!r}: {remedy}") from None
    passes = 0 if accumulation_steps is None else _integer(
        accumulation_steps, "accumulation_steps", 1, _MOST_PASSES, ", or None for any number")
    return {"state_format": state_format, "gradients_per_step": passes,
            "host_memory": _size(host_memory, "host_memory"),
            "gradient_memory": _size(gradient_memory, "gradient_memory"),
            "threads": _integer(threads, "threads", 0, _MOST_THREADS, "; 0 takes one a core"),
            "isa": isa, "seed": _integer(seed, "seed", 0, 2**64 - 1, "")}


def check_format(state_format: str, has_bf16: bool, remedy: str) -> None:
    """Raises for a format shorter than fp32 where no parameter is of bf16. `remedy`: what else the
    caller can do."""
    if state_format != "fp32" and not has_bf16:
        raise InvalidArgumentError(
            f"state_format {state_format} is for bf16 parameters, of which there are none; leave "
            f"it out, or {remedy}")


def trainer_options(options: Mapping[str, Any], dtype: str) -> Any:
    """Returns what a trainer of parameters of an element type is made with; None: its default."""
    made = native.TrainerOptions()
    for name, value in options.items():
        if value is not None:
            setattr(made, name, value)
    made.dtype = dtype
    if dtype != "bf16":
        made.state_format = "fp32"  # of norms in fp32 beside matrices in bf16
    return made
