"""What Spillway raises. The text of an error names the cause, the value and the remedy."""
from __future__ import annotations

from typing import Any


class Error(Exception):
    """Something that Spillway was asked for could not be done.

    `code` is a short stable name such as "io_error", `native` the code of the system or the device
    that failed (errno, cudaError_t; 0 if there is none), and `where` the line of the source that
    noticed it.
    """

    code = "internal"

    def __init__(self, message: str, native: int = 0, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.native = native
        self.where = where

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(Error, ValueError):
    """An argument or a configuration is wrong."""

    code = "invalid_argument"


class DoesNotFitError(Error):
    """A budget of memory is too small for what was asked for."""

    code = "does_not_fit"


class OutOfMemoryError(Error, MemoryError):
    """The system or a limit refused an allocation."""

    code = "out_of_memory"


class IoError(Error, OSError):
    """An operation on a file failed; `errno` is the system's number."""

    code = "io_error"

    def __init__(self, message: str, native: int = 0, where: str = "") -> None:
        super().__init__(message, native, where)
        self.errno: int | None = native or None
        self.strerror: str = message


class CorruptDataError(Error):
    """Bytes that were read are not those that were written, or a file breaks its format."""

    code = "corrupt_data"


class BusyError(Error):
    """Another process holds the resource."""

    code = "busy"


class NotSupportedError(Error, NotImplementedError):
    """The request is understood, and this build or this machine cannot do it."""

    code = "not_supported"


class DivergedError(Error, ArithmeticError):
    """Training produced values that are not finite and from which it cannot recover."""

    code = "diverged"


class DeviceError(Error):
    """A call of the device's runtime failed; `native` is its code."""

    code = "device_error"


class InternalError(Error):
    """A library failed in a way that has no better name."""

    code = "internal"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a training run after a step; its state is saved. `report` is that of the run."""

    def __init__(self, report: Any) -> None:
        super().__init__(f"interrupted after step {report.last_step}, which is saved; "
                         "resume=True goes on from there")
        self.report = report


_BY_CODE = {kind.code: kind for kind in (
    InvalidArgumentError, DoesNotFitError, OutOfMemoryError, IoError, CorruptDataError, BusyError,
    NotSupportedError, DivergedError, DeviceError, InternalError)}


#: Names of the runtime's interface, and what they are in this package.
_NAMES = {"gradients_per_step": "accumulation_steps", "discard_gradients": "zero_grad()",
          "call step or": "call step() or", "(missing_gradient)": '(missing="zero")',
          "after grad_norm": "after clip_grad_norm_", "--host-memory": "host_memory",
          "--device-memory": "device_memory", "--nvme": "nvme"}


def in_names_of_python(message: str) -> str:
    """Returns what the runtime says in the names of this package."""
    for theirs, ours in _NAMES.items():
        message = message.replace(theirs, ours)
    return message


def from_native(code: str, message: str, native: int, where: str) -> Error:
    """Returns the exception for an error of the runtime."""
    return _BY_CODE.get(code, Error)(in_names_of_python(message), native, where)
