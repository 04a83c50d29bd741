"""Where the parameters of a shard are: on the host, or on a GPU, whose streams order what is done.

`Gpu` has not run on a GPU yet; tests/python runs it with stand-ins for torch.cuda, and streams
models through an emulated GPU.
"""
from __future__ import annotations

import contextlib
from typing import Any

import torch


class Host:
    """CPU tensors: what a call returns from is done."""

    def configure(self, options: Any) -> None:
        """Tells the trainer where the parameters are."""

    def current(self) -> contextlib.AbstractContextManager:
        """Makes the device the one that torch uses."""
        return contextlib.nullcontext()

    def stream(self) -> int | None:
        """Returns the stream that has torch's work so far."""
        return None

    def add_gradient(self, trainer: Any, index: int, gradient: torch.Tensor) -> None:
        """Hands a gradient over, which may be freed then. It is in one piece; its type and shape
        are the parameter's, as autograd sees to."""
        trainer.add_gradient_at(index, gradient.data_ptr(), gradient.nbytes)

    def release(self, trainer: Any) -> None:
        """Frees gradients that the trainer has read."""


class Gpu(Host):
    """CUDA tensors of one GPU. The trainer reads gradients later, so they are held until then."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._held: dict[int, torch.Tensor] = {}  # by parameter

    def configure(self, options: Any) -> None:
        options.device = "cuda"
        options.device_index = self._index

    def current(self) -> contextlib.AbstractContextManager:
        return torch.cuda.device(self._index)

    def stream(self) -> int | None:
        return torch.cuda.current_stream(self._index).cuda_stream

    def add_gradient(self, trainer: Any, index: int, gradient: torch.Tensor) -> None:
        self.release(trainer)
        trainer.add_device_gradient(index, gradient.data_ptr(), gradient.nbytes, self.stream())
        self._held[index] = gradient

    def release(self, trainer: Any) -> None:
        # In the order in which they were handed over, which is that in which they are read.
        for index in list(self._held):
            if trainer.reads_gradient(index):
                break
            del self._held[index]


def device_of(place: torch.device) -> Host:
    """Returns what stands for a CPU or for a GPU of CUDA."""
    if place.type == "cpu":
        return Host()
    return Gpu(torch.cuda.current_device() if place.index is None else place.index)
