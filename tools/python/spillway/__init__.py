"""Spillway: trains models that are too large for the GPU.

    import spillway
    print(spillway.plan("train.json", model="llama-3.1-8b"))
    spillway.train("train.json", model="config.json", data="data", run="run")
    spillway.export("run", "checkpoint")

`spillway.torch` has optimizers for a training loop of PyTorch.
"""
from spillway.errors import (
    BusyError,
    CorruptDataError,
    DeviceError,
    DivergedError,
    DoesNotFitError,
    Error,
    InternalError,
    Interrupted,
    InvalidArgumentError,
    IoError,
    NotSupportedError,
    OutOfMemoryError,
)
from spillway.reports import Export, Plan, Report, Step
from spillway.run import export, plan, train

__all__ = [
    "BusyError", "CorruptDataError", "DeviceError", "DivergedError", "DoesNotFitError", "Error",
    "Export", "InternalError", "Interrupted", "InvalidArgumentError", "IoError",
    "NotSupportedError", "OutOfMemoryError", "Plan", "Report", "Step", "export", "plan", "train",
]
