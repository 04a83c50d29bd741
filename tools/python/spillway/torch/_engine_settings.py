"""What DeepSpeed's engine answers about its configuration and its batches."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spillway._documents import section_of
from spillway.errors import InvalidArgumentError
from spillway.torch._deepspeed_names import ENGINE, OFF, refusal
from spillway.torch._engine_checkpoint import WithCheckpoints

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class WithSettings(WithCheckpoints):
    """An engine that answers as DeepSpeed's. A name that it has not is that of the model."""

    _document: Mapping[str, Any]
    config: Any = None  #: as initialize was given it, and so are the next four
    client_optimizer: Any = None
    client_lr_scheduler: Any = None
    training_data: Any = None
    collate_fn: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in OFF:
            return lambda: False
        if name in ENGINE:
            raise refusal(name, "engine.", ENGINE[name])
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # before there is one
                raise
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise AttributeError(f"neither the engine nor its model, a "
                                 f"{type(self.module).__name__}, has {name}") from None

    # Batches.

    def train_micro_batch_size_per_gpu(self) -> int:
        """Examples of a micro-batch."""
        return self._configuration.micro_batch

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the number of micro-batches of the steps that follow."""
        of_pass = self.train_micro_batch_size_per_gpu() * self.world_size
        if train_batch_size < of_pass or train_batch_size % of_pass:
            raise InvalidArgumentError(
                f"train_batch_size is {train_batch_size}, which is no multiple of {of_pass}, the "
                "micro-batch times the ranks: give one")
        if (self.micro_steps - self._first_micro_step) % self.gradient_accumulation_steps():
            raise InvalidArgumentError(
                "set_train_batch_size within a step, whose losses were divided by the old number "
                "of micro-batches: call it after the last of them")
        self._first_micro_step = self.micro_steps
        self._loss_scaling.micro_batches = train_batch_size // of_pass

    def get_batch_info(self) -> tuple[int, int, int]:
        """Examples of a step, examples of a micro-batch, and micro-batches of a step."""
        return (self.train_batch_size(), self.train_micro_batch_size_per_gpu(),
                self.gradient_accumulation_steps())

    def managed_gradient_accumulation(self) -> bool:
        """The engine counts micro-batches."""
        return True

    # Rates.

    def get_lr(self) -> list[float]:
        """The learning rates of the next update, by group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """The momentum of each group, or its betas."""
        return [group.get("momentum", group.get("betas", 0.0))
                for group in self.optimizer.param_groups]

    def optimizer_name(self) -> str | None:
        """The optimizer's name in the configuration, in lower case, or the class of the program's
        own."""
        if self.client_optimizer is not None:
            return type(self.client_optimizer).__name__
        name = section_of(self._document, "optimizer").get("type")
        return None if name is None else name.lower()

    def optimizer_params(self) -> dict[str, Any]:
        """The optimizer's parameters in the configuration."""
        return dict(section_of(section_of(self._document, "optimizer"), "params"))

    def scheduler_name(self) -> str | None:
        """The schedule's name in the configuration."""
        return section_of(self._document, "scheduler").get("type")

    def scheduler_params(self) -> dict[str, Any]:
        """The schedule's parameters in the configuration."""
        return dict(section_of(section_of(self._document, "scheduler"), "params"))

    def gradient_clipping(self) -> float:
        """The norm to which steps clip; 0 is none."""
        return self.optimizer.max_norm

    def steps_per_print(self) -> int:
        """What the configuration says; the engine prints nothing."""
        return self._document.get("steps_per_print", 10)

    # Precision.

    def fp16_enabled(self) -> bool:
        """Whether the model is in fp16."""
        return self._configuration.dtype == "fp16"

    def bfloat16_enabled(self) -> bool:
        """Whether the model is in bf16."""
        return self._configuration.dtype == "bf16"

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtype of the model, and that in which gradients are summed."""
        return DTYPES[self._configuration.dtype], torch.float32

    def loss_scale(self) -> float:
        """What losses are multiplied by now: 1 but with fp16."""
        return self._configuration.loss_scale

    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes."""
        return self.fp16_enabled() and not section_of(self._document, "fp16").get("loss_scale")

    def initial_dynamic_scale(self) -> float:
        """The loss scale that a dynamic one begins with."""
        power = section_of(self._document, "fp16").get("initial_scale_power")
        return 2.0 ** (16 if power is None else power)

    # ZeRO.

    def _zero(self, section: str | None = None) -> Mapping[str, Any]:
        zero = section_of(self._document, "zero_optimization")
        return zero if section is None else section_of(zero, section)

    def zero_optimization_stage(self) -> int:
        """The stage that the configuration says; ranks cut state in stage 0 too."""
        return self._zero().get("stage") or 0

    def zero_optimization(self) -> bool:
        """Whether the configuration has a stage above 0."""
        return self.zero_optimization_stage() > 0

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether ranks keep gradients of their part alone."""
        return self.optimizer.ranks is not None and self.optimizer.ranks.stage == 2

    def zero_offload_optimizer(self) -> dict[str, Any] | None:
        """The section `offload_optimizer` of the configuration."""
        return dict(self._zero("offload_optimizer")) or None

    def zero_offload_param(self) -> dict[str, Any] | None:
        """The section `offload_param` of the configuration."""
        return dict(self._zero("offload_param")) or None

    def zero_nvme_offload_optimizer(self) -> bool:
        """Whether optimizer state is on disk."""
        return bool(self.optimizer.options()["nvme"])

    def zero_cpu_offload(self) -> bool:
        """Whether optimizer state is in host memory."""
        return not self.zero_nvme_offload_optimizer()

    def zero_use_cpu_optimizer(self) -> bool:
        """The CPU updates."""
        return True

    # Ranks.

    @property
    def data_parallel_group(self) -> Any:
        """The group of all ranks, or None for one process."""
        return None if self.optimizer.ranks is None else self.optimizer.ranks.group

    @property
    def dp_world_size(self) -> int:
        """Ranks that have batches of their own: all of them."""
        return self.world_size

    def get_data_parallel_rank(self) -> int:
        """The rank among those."""
        return self.global_rank

    mpu = None
    mp_world_size = sequence_parallel_size = 1
    has_moe_layers = pipeline_parallelism = False

    def get_model_parallel_rank(self) -> int:
        """Each rank has the whole model."""
        return 0

    def autotp_size(self) -> int:
        """The same for tensor parallelism, which is not here."""
        return 0

    def empty_partition_cache(self) -> None:
        """Changes nothing: parameters are whole, and no others are gathered."""
