"""Configurations that a program gives as a file or a dict: the one place that reads them."""
from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from spillway._paths import path_of
from spillway.errors import InvalidArgumentError


_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\])*"|(?:#|//)[^\n]*|/\*.*?\*/', re.DOTALL)


def _plain(value: Any) -> Any:
    """Returns what JSON has for a value that it does not know: a path, or a number of numpy."""
    if isinstance(value, os.PathLike):
        return path_of(value, "a path of the configuration")
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise InvalidArgumentError(
        f"the configuration has {value!r}, of type {type(value).__name__}, which JSON cannot have; "
        "use numbers, texts, lists and dicts")


def to_text(document: Mapping[str, Any]) -> str:
    """Returns a dict as JSON."""
    return json.dumps(document, default=_plain)


def parsed(text: str) -> dict[str, Any]:
    """Returns the document of a configuration that the native parser has taken: its text may have
    comments."""
    plain = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    return json.loads(plain)


def section_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section, which is empty where it is absent or null."""
    return document.get(name) or {}


def read_text(path: Any, what: str) -> tuple[str, str]:
    """Returns the text of a file, and its path."""
    origin = path_of(path, what)
    try:
        return pathlib.Path(origin).read_text(encoding="utf-8"), origin
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{origin} is no text of UTF-8: {error}; give DeepSpeed's JSON "
                                   "with a section spillway") from None


def text_of(config: Any) -> tuple[str, str]:
    """Returns the text of a configuration, and its name in errors."""
    return (to_text(config), "config") if isinstance(config, Mapping) else read_text(config,
                                                                                     "config")
