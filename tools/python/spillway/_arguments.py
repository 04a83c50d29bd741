"""Arguments that optimizers share, checked before anything is built."""
from __future__ import annotations

from typing import Any

from spillway.errors import InvalidArgumentError


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
