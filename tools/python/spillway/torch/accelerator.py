"""`get_accelerator` of DeepSpeed: the device of the engine's model, which is the CPU."""
from __future__ import annotations

import contextlib
from typing import Any

import torch

from spillway.torch._deepspeed_names import refusal

_NOT_HERE = ("the engine's model and batches are on the CPU, where there is no such thing: leave "
             "it out, or call torch")


class Accelerator:
    """Answers as DeepSpeed's accelerator for a CPU. What names a device is for tensors that the
    engine's model takes; `index` changes nothing. Other names of DeepSpeed's are refused."""

    def device_name(self, index: int | None = None) -> str:
        """The device of the engine's model, for `Tensor.to`."""
        return "cpu"

    def current_device_name(self) -> str:
        """The same name."""
        return "cpu"

    current_device = current_device_name

    def device(self, index: int | None = None) -> contextlib.AbstractContextManager[None]:
        """A context without effect."""
        return contextlib.nullcontext()

    def set_device(self, index: int) -> None:
        """Changes nothing."""

    def synchronize(self, index: int | None = None) -> None:
        """Changes nothing: the CPU's work is done when its call returns."""

    def empty_cache(self) -> None:
        """Changes nothing: there is no cache of a device."""

    def device_count(self) -> int:
        """One device."""
        return 1

    def is_available(self) -> bool:
        """The CPU is there."""
        return True

    def is_synchronized_device(self) -> bool:
        """Calls return when their work is done."""
        return True

    def communication_backend_name(self) -> str:
        """The backend by which ranks meet."""
        return "gloo"

    def is_bf16_supported(self) -> bool:
        """Models of bf16 train."""
        return True

    is_fp16_supported = is_bf16_supported

    def supported_dtypes(self) -> list[torch.dtype]:
        """Dtypes of models that train."""
        return [torch.float32, torch.bfloat16, torch.float16]

    def manual_seed(self, seed: int) -> torch.Generator:
        """Does torch.manual_seed."""
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        """The seed of torch's generator."""
        return torch.initial_seed()

    def get_rng_state(self, index: int | None = None) -> torch.Tensor:
        """The state of torch's generator of the CPU."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, index: int | None = None) -> None:
        """Sets the state of torch's generator of the CPU."""
        torch.set_rng_state(state)

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """Returns the tensor: nothing copies it to a device."""
        return tensor

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is where the engine's model is."""
        return tensor.device.type == "cpu"

    def range_push(self, message: str) -> None:
        """Changes nothing: there is no profiler of a device."""

    def range_pop(self) -> None:
        """Changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, "get_accelerator().", _NOT_HERE)


_ACCELERATOR = Accelerator()


def get_accelerator() -> Accelerator:
    """Returns the device of the engine's model, which stays on the CPU."""
    return _ACCELERATOR
