"""Steps: what has come since the last one is clipped as one and updates all shards, or none."""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from spillway._arguments import checked_norm
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._alone import check_optimizer_alone
from spillway.torch._partition import Partition
from spillway.torch._ranks import STEPS, checksum
from spillway.torch._registration import WithRegistration
from spillway.torch._shard import Shard
from spillway.torch._uncut import uncut


class WithSteps(WithRegistration):
    """An optimizer that updates its parameters."""

    _step_supports_amp_scaling = True  # torch.amp.GradScaler leaves the scale to `step`
    max_norm: float
    grad_norm: float
    skipped_steps: int
    _clip_next: float | None  #: what the next step clips to
    _divisor: Callable[[], float] = staticmethod(lambda: 1.0)  #: of gradients before a step

    def divide_by(self, scale: Callable[[], float]) -> None:
        """Makes `clip_grad_norm_` divide by what a loss scale is then."""
        self._divisor = scale

    @property
    def cur_scale(self) -> float:
        """The loss scale of the engine that steps it; 1 without one."""
        return self._divisor()

    loss_scale = cur_scale

    @torch._disable_dynamo  # as torch does with what its optimizers do beside their updates
    def step(self, closure: Callable[[], Any] | None = None, *, divisor: float = 1.0) -> Any:
        """Updates parameters with the gradients of the backward passes since the last step, which
        are divided by `divisor`. A `closure` computes them first; its result is returned.

        `missing` says what becomes of parameters without a gradient. With torch.amp.GradScaler,
        call `scaler.step(optimizer)`; the scale is divided out in the update.
        Ctrl-C interrupts it before it updates, or when all parameters are updated.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        try:
            self._step(divisor)
        except BaseException:
            # What GradScaler sets for one step, it removes when that is over.
            self.__dict__.pop("grad_scale", None)
            self.__dict__.pop("found_inf", None)
            raise
        return result

    def _step(self, divisor: float) -> None:
        if self._ranks is None:
            check_optimizer_alone()
        scale = getattr(self, "grad_scale", None)
        divisor *= 1.0 if scale is None else float(scale)
        self._uses.check()
        self._check_whole()
        self._take_what_came()
        if float(getattr(self, "found_inf", None) or 0) > 0:
            self._skip(scale)
            return
        max_norm = self.max_norm if self._clip_next is None else self._clip_next
        divisor /= self._take_factors()
        if self._ranks is not None:
            self._check_settings(divisor, max_norm)
        self._set_groups()
        with uncut(repeats=self._ranks is not None):
            self.grad_norm, skipped = self._step_shards(divisor, max_norm)
            self._divide_last(scale)
            self._clip_next = None
            if skipped:
                self._uses.tell_skipped()
            self._uses.forget()
            self.skipped_steps += skipped

    def _divide_last(self, scale: Any) -> None:
        """Makes gradients of the step that is over those that torch.amp.GradScaler would leave."""
        for shard in self._shards if scale is not None else ():
            shard.multiply(1 / float(scale))

    def _skip(self, scale: Any) -> None:
        """Ends a step of which torch.amp.GradScaler has found that gradients were not finite."""
        with uncut():
            for shard in self._shards:
                shard.end_step(shard.discard_gradients)
            self._divide_last(scale)
            self._clip_next = None
            self._uses.forget()
            self.grad_norm = math.inf
            self.skipped_steps += 1

    def _check_settings(self, divisor: float, max_norm: float) -> None:
        """Raises unless all ranks make the same step."""
        groups = [{**group, "params": None} for group in self.param_groups]
        updates = [shard.trainer.updates for shard in self._shards]
        changes = [shard.changes() for shard in self._shards]
        passes = [shard.passes() for shard in self._shards]
        writes = [shard.writes for shard in self._shards]
        settings = [groups, updates, divisor, max_norm, changes, passes, writes]
        self._ranks.announce(STEPS, checksum(settings)).details()

    def _take_what_came(self) -> None:
        """Takes parameters that need gradients since the last step, gradients that no backward pass
        handed over, and values that the program wrote."""
        self._end_passes()
        self._check_registered()
        self._register()
        self._check_absent()
        for shard in self._shards:
            shard.take_home()
            shard.notice_drops()
            shard.take_writes()
            shard.add_gradients()
        if self._ranks is not None:
            self._rounds.finish()

    def _take_factors(self) -> float:
        """Returns the factor by which the program has multiplied all gradients. Where each has its
        own, they are multiplied here."""
        factors = set().union(*(shard.factors() for shard in self._shards))
        if len(factors) == 1 and (factor := factors.pop()) > 0:
            return factor
        for shard in self._shards:
            shard.apply_factors()
        return 1.0

    def _step_shards(self, divisor: float, max_norm: float) -> tuple[float, bool]:
        """Steps all trainers, or none if a gradient of one is not finite."""
        shards = self._with_gradients()
        if not shards:  # torch's optimizers do nothing then
            return 0.0, False
        norm = None
        if len(shards) > 1 or self._ranks is not None:
            norm = self._global_norm(divisor, shards)
        done = shards[0].step(divisor, max_norm, norm)
        with self.replacing("step"):
            for shard in shards[1:]:
                shard.step(divisor, max_norm, norm)
        return done

    def _with_gradients(self) -> list[Shard | Partition]:
        """The shards that take part in a step: all, unless those without a gradient are skipped."""
        return [shard for shard in self._shards
                if shard.any_received() or self._options["missing"] != "skip"]

    def _global_norm(self, divisor: float, shards: list[Shard | Partition]) -> float:
        try:
            return math.hypot(*(shard.norm(divisor) for shard in shards))
        except InvalidArgumentError:
            if self._ranks is not None:  # what came on some ranks cannot be completed any more
                for shard in self._shards:
                    shard.discard_gradients()
            raise

    def clip_grad_norm_(self, max_norm: float, grad_scaler: Any = None) -> torch.Tensor:
        """Clips the global norm in the next step and returns the norm before that.

        Unlike torch.nn.utils.clip_grad_norm_ it changes no gradient. With a torch.amp.GradScaler,
        pass it.
        """
        max_norm = checked_norm(max_norm)
        self._take_what_came()
        self._uses.settle_clip()
        scale = self._divisor() if grad_scaler is None else grad_scaler.get_scale()
        if grad_scaler is not None and self._uses.has_unscaled():
            scale = 1.0
        norm = self._global_norm(scale / self._take_factors(), self._with_gradients())
        self._clip_next = max_norm
        is_within = max_norm == 0 or norm <= max_norm
        self._keep_clip(1.0 if is_within else max_norm / (norm + 1e-6))
        return torch.tensor(norm, dtype=torch.float32, device="cpu")

    def _keep_clip(self, factor: float) -> None:
        """Leaves a clip to the next step, unless the program uses gradients before it, or others
        come, which the clip is not for. It goes with its gradients where all are dropped."""
        optimizer = weakref.ref(self)

        def clip() -> None:
            if (alive := optimizer()) is not None:
                shards = alive._shards
                for shard in shards:
                    shard.multiply(factor)
                alive._clip_next = 0.0 if any(shard.keeps_any() for shard in shards) else None

        self._uses.keep_clip(clip)

    def check_unchanged(self, scale: float) -> None:
        """Raises if the program has changed gradients that have a loss scale in them."""
        if scale == 1:
            return
        for shard in self._shards:
            if (name := shard.first_changed()) is not None:
                raise NotSupportedError(
                    f"the gradient of {name} was changed or multiplied, as "
                    "torch.nn.utils.clip_grad_norm_ does, while it has the loss scale "
                    f"{scale:g} of fp16 in it: clip with gradient_clipping; zero_grad() forgets "
                    "this step")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients since the last step. They are gone either way, so that
        `set_to_none=False` is refused unless parameters without one count as having zeros."""
        if not set_to_none and self._options["missing"] == "skip":
            raise NotSupportedError(
                "zero_grad(set_to_none=False) leaves zeros, with which torch updates parameters "
                'that get no gradient: call zero_grad(), or make the optimizer with missing="zero"')
        self._end_passes()
        self._forget_gradients()
        super().zero_grad(set_to_none=True)

    def _forget_gradients(self) -> None:
        for shard in self._shards:
            shard.discard_gradients()
        self._clip_next = None
        self._uses.forget()
