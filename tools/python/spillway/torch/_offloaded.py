"""What the offloaded optimizers share: gradients go down as they become ready, one pass updates."""
from __future__ import annotations

import math
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from spillway._arguments import checked_norm
from spillway._load import native
from spillway._paths import Paths, existing_folders
from spillway._state_folders import own_folders
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._alone import check_optimizer_alone, check_unwrapped
from spillway.torch._handed_over import Uses
from spillway.torch._held import Registered, check_memory, check_parameter
from spillway.torch._lifetime import Lifetime, hold
from spillway.torch._partition import Partition
from spillway.torch._ranks import STEPS, Ranks, checksum
from spillway.torch._rounds import Rounds
from spillway.torch._shard import Shard
from spillway.torch._state import WithState
from spillway.torch._uncut import uncut
from spillway.torch.streaming import place_of, streaming_of, unit_of

_MISSING = ("skip", "zero", "refuse")
_ALONE = object()  # None is what torch.distributed.group.WORLD is before there are processes


class OffloadedOptimizer(WithState):
    """A torch.optim.Optimizer whose parameters, gradients and state are in Spillway's memory.

    `nvme` names folders on whose disks master weights and moments live; without it they are in host
    memory. `state_format` says how they are kept: "fp32" (12 bytes a parameter), and for bfloat16
    parameters "split" (10), "bf16" (6) or "int8" (4.03). `accumulation_steps` is the number of
    backward passes before each step, whose gradients are summed in fp32; None is any number of
    them, and the norm is then computed in `step`. `max_norm` clips the
    global gradient norm as torch.nn.utils.clip_grad_norm_ does; 0 switches it off. `deferred` is
    the module that the parameters belong to: a step then only decides its update, which runs while
    the program goes on, and each submodule waits for its own parameters before its forward pass.
    `missing` says what becomes of parameters without a gradient in a step: with "skip" they keep
    value, state and number of updates, as with torch's optimizers; with "zero" their gradient
    counts as zero, and with "refuse" `step` raises. It is "skip", and "refuse" with a
    `process_group`, where ranks would have to agree. `host_memory` is a budget such as "8GiB",
    `threads` the number of threads that update, `seed` that of stochastic rounding.
    `gradient_memory` is as much of gradients as may wait on a GPU to be brought to the host; then
    the backward pass waits.

    `process_group` is a group of torch.distributed whose ranks train copies of one model, each with
    batches of its own; gradients are averaged over them. Each rank keeps the state of an equal part
    of the parameters, and with `stage` 2 gradients of that part alone (ZeRO). With `stage` 1 torch
    sums a step's gradients in `grad`, and ranks exchange them once a step.
    All ranks make the calls that exchange something: the optimizer, `backward`, `step`,
    `clip_grad_norm_`, `zero_grad` after a backward pass, `state_dict`, `load_state_dict`, `load`.

    A step with a gradient that is not finite changes nothing; `skipped_steps` counts them.
    `grad_norm` is the global norm of the last step, before clipping. Threads, tiers and formats on
    disk never change a bit; the order of backward passes that are accumulated does.

    State and folders go with the optimizer: with its last reference, with `close()`, at the end of
    a `with` block, or when another optimizer is made with one of its parameters. Parameters keep
    their values.
    """

    kind = ""                          #: of the native update
    decoupled = False                  #: weight decay acts on the parameter
    _step_supports_amp_scaling = True  # torch.amp.GradScaler leaves the scale to `step`

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *,
                 nvme: Paths = (), state_format: str = "fp32",
                 accumulation_steps: int | None = 1, max_norm: float = 0.0,
                 deferred: torch.nn.Module | None = None, missing: str | None = None,
                 host_memory: str | int | None = None,
                 gradient_memory: str | int | None = None, threads: int = 0,
                 isa: str | None = None, seed: int = 1234,
                 process_group: Any = _ALONE, stage: int = 2) -> None:
        if missing is None:
            missing = "skip" if process_group is _ALONE else "refuse"
        if missing not in _MISSING:
            raise InvalidArgumentError(
                f'missing is "{missing}"; it is {", ".join(_MISSING)} or None')
        if missing == "skip" and process_group is not _ALONE:
            raise NotSupportedError('missing="skip" with a process_group is not supported: a '
                                    'parameter may have a gradient on one rank alone; use "zero"')
        if accumulation_steps is not None and accumulation_steps < 1:
            raise InvalidArgumentError(
                f"accumulation_steps is {accumulation_steps}; it is at least 1, or None for any")
        self._ranks = None
        if process_group is _ALONE:
            check_optimizer_alone()
        else:
            if deferred is not None:
                raise NotSupportedError(
                    "deferred with a process_group is not supported: all ranks need the new "
                    "parameters when `step` returns; leave deferred out")
            self._ranks = Ranks(process_group, stage)
            self._rounds = Rounds(self._ranks)
        if deferred is not None:
            check_unwrapped(deferred, "deferred")
        self.max_norm = checked_norm(max_norm)
        self.grad_norm = 0.0
        self.skipped_steps = 0
        self._options = {
            "nvme": existing_folders(nvme, "nvme"), "state_format": state_format,
            "gradients_per_step": accumulation_steps or 0, "defers_updates": deferred is not None,
            "missing": missing, "threads": threads, "seed": seed,
            "host_memory": None if host_memory is None else str(host_memory), "isa": isa,
            "gradient_memory": None if gradient_memory is None else str(gradient_memory)}
        self._lifetime = Lifetime(self)
        self._options["nvme"] = self._lifetime.folders = own_folders(self._options["nvme"])
        self._places: dict[torch.Tensor, tuple[Shard | Partition, int]] = {}
        self._absent: list[tuple[int, int]] = []  # groups and numbers of parameters without state
        self._uses = Uses()
        self._clip_next: float | None = None
        self._ready = False
        super().__init__(params, defaults)
        self._ready = True
        self._register()
        if deferred is not None:
            self._wait_before_forward(deferred)

    # Registration.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, also after steps; they begin with empty state."""
        self._check_group(param_group)
        with self._all_or_none():
            super().add_param_group(param_group)
            group = len(self.param_groups) - 1
            self._absent += [(group, number)
                             for number in range(len(self.param_groups[group]["params"]))]
            if self._ready:
                self._register()

    def _register(self) -> None:
        """Moves parameters that need gradients and are not here yet into trainers."""
        new: dict[tuple[torch.dtype, torch.device], list[Registered]] = defaultdict(list)
        still_absent = []
        for group, number in self._absent:
            parameter = self.param_groups[group]["params"][number]
            if (parameter in self._places or not parameter.requires_grad
                    or not parameter.numel()):
                still_absent.append((group, number))
                continue
            names = self.param_groups[group].get("param_names")
            name = names[number] if names else f"parameter {number} of group {group}"
            entry = Registered(parameter, group, name, unit_of(parameter))
            check_parameter(entry)
            new[parameter.dtype, place_of(parameter)].append(entry)
        if not new:
            return
        check_memory([entry for entries in new.values() for entry in entries])
        short = self._options["state_format"]
        if short != "fp32" and not any(
                parameter.dtype == torch.bfloat16 for parameter in (*self._places, *(
                    entry.parameter for entries in new.values() for entry in entries))):
            raise InvalidArgumentError(
                f"state_format {short} is for bf16 parameters, of which there are none; leave it "
                "out, or convert the model: model.to(torch.bfloat16)")
        with self._all_or_none():
            hold(self, [entry.parameter for entries in new.values() for entry in entries])
            for (_, place), entries in new.items():
                self._add_shard(entries, place)
        self._absent = still_absent

    def _add_shard(self, entries: list[Registered], place: torch.device) -> None:
        hyperparameters = {entry.group: self._hyperparameters(entry.group, 0) for entry in entries}
        options = self._trainer_options(entries[0].parameter.dtype)
        streaming = streaming_of([entry.parameter for entry in entries])
        frozen: list[Registered] = []
        if streaming is not None:
            if any(streaming.is_kept_by(shard) for shard in self._shards):
                raise NotSupportedError(
                    f"{entries[0].name} of an offloaded model is trained since the optimizer was "
                    "made, or is of another element type; make the optimizer again, with "
                    "parameters of one element type")
            options.device_memory = streaming.device_memory
            frozen = streaming.frozen()
            check_memory([*entries, *frozen])
        if self._ranks is None:
            shard = Shard(entries, frozen, hyperparameters, options, place)
        elif streaming is None:
            shard = Partition(entries, hyperparameters, options, place, self._rounds)
        else:
            raise NotSupportedError("offload_model with a process_group is not supported: use one "
                                    "of the two")
        if streaming is not None:
            streaming.attach(shard)
            self._lifetime.streamings.append(streaming)
        shard.watch(self._uses)
        self._shards.append(shard)
        for index, entry in enumerate(entries):
            self._places[entry.parameter] = (shard, index)
            first = self._first_state(self.param_groups[entry.group], entry.parameter.shape)
            if first is not None:
                shard.write(index, None, None, first)
            self._lifetime.hooks.append(shard.hook(index))

    def _trainer_options(self, dtype: torch.dtype) -> Any:
        options = native.TrainerOptions()
        for name, value in self._options.items():
            if value is not None:
                setattr(options, name, value)
        if dtype != torch.bfloat16 and options.state_format != "fp32":
            options.state_format = "fp32"  # of norms in fp32 beside matrices in bf16
        if self._shards and options.nvme:
            options.nvme = [os.path.join(folder, f"shard{len(self._shards)}")
                            for folder in options.nvme]
        if self._ranks is not None:  # of one machine, perhaps
            options.nvme = [os.path.join(folder, f"rank{self._ranks.rank}")
                            for folder in options.nvme]
        return options

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raises for what torch's optimizers do and ours do not."""
        for key in self.refused:
            if group.get(key):
                raise NotSupportedError(f"a parameter group has {key}={group[key]}, which is not "
                                        "supported; leave it out")

    def _set_groups(self) -> None:
        for shard in self._shards:
            updates = shard.trainer.updates
            for place, number in enumerate(shard.groups):
                shard.trainer.set_group(place, self._hyperparameters(number, updates))

    def _learning_rate(self, group: dict[str, Any], updates: int) -> float:
        return float(group["lr"])

    def _first_state(self, group: dict[str, Any], shape: torch.Size) -> torch.Tensor | None:
        return None

    def _hyperparameters(self, number: int, updates: int) -> Any:
        group = self.param_groups[number]
        self._check_group(group)
        native_group = native.Group()
        native_group.optimizer = self.kind
        native_group.decoupled = self.decoupled
        native_group.lr = self._learning_rate(group, updates)
        native_group.beta1, native_group.beta2 = group.get("betas", (group.get("momentum", 0), 0))
        native_group.eps = group.get("eps", 0.0)
        native_group.weight_decay = group["weight_decay"]
        return native_group

    # Steps.

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
        divisor *= self._uses.unscaled_by() * (1.0 if scale is None else float(scale))
        max_norm = self.max_norm if self._clip_next is None else self._clip_next
        self._uses.check(clips=max_norm > 0 or self._clip_next is not None)
        self._check_whole()
        self._take_what_came()
        if self._ranks is not None:
            self._check_settings(divisor, max_norm)
        self._set_groups()
        with uncut(repeats=self._ranks is not None):
            self.grad_norm, skipped = self._step_shards(divisor, max_norm)
            self._clip_next = None
            self._uses.tell_finite(not skipped)
            self._uses.forget()
            self.skipped_steps += skipped

    def _check_settings(self, divisor: float, max_norm: float) -> None:
        """Raises unless all ranks make the same step."""
        groups = [{**group, "params": None} for group in self.param_groups]
        updates = [shard.trainer.updates for shard in self._shards]
        self._ranks.announce(STEPS, checksum([groups, updates, divisor, max_norm])).details()

    def _take_what_came(self) -> None:
        """Takes parameters that need gradients since the last step, gradients that no backward pass
        handed over, and values that the program wrote."""
        self._end_passes()
        self._register()
        for shard in self._shards:
            shard.check_replaced()
            shard.notice_drops()
            shard.take_writes()
            shard.add_gradients()
        if self._ranks is not None:
            self._rounds.finish()

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

        It stands for torch.nn.utils.clip_grad_norm_, which finds no gradients: they are here. With
        a torch.amp.GradScaler, pass it.
        """
        max_norm = checked_norm(max_norm)
        self._take_what_came()
        norm = self._global_norm(1.0 if grad_scaler is None else grad_scaler.get_scale(),
                                 self._with_gradients())
        self._clip_next = max_norm
        return torch.tensor(norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients since the last step. They are gone either way, so that
        `set_to_none=False` is refused unless parameters without one count as having zeros."""
        if not set_to_none and self._options["missing"] == "skip":
            raise NotSupportedError(
                "zero_grad(set_to_none=False) leaves zeros, with which torch updates parameters "
                'that get no gradient: call zero_grad(), or make the optimizer with missing="zero"')
        self._end_passes()
        for shard in self._shards:
            shard.discard_gradients()
        self._clip_next = None
        self._uses.forget()
        super().zero_grad(set_to_none=True)

    # Deferred updates.

    def _wait_before_forward(self, module: torch.nn.Module) -> None:
        optimizer = weakref.ref(self)  # a model may outlive its optimizer

        def wait(own: list[torch.Tensor]) -> None:
            if (alive := optimizer()) is not None:
                alive._wait(own)

        for part in module.modules():
            own = [parameter for parameter in part.parameters(recurse=False)
                   if unit_of(parameter) is None]  # a streamed one comes with its update
            if own:
                self._lifetime.hooks.append(part.register_forward_pre_hook(
                    lambda *_, own=own: wait(own)))

    def _wait(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter in self._places:
                shard, index = self._places[parameter]
                shard.wait(index)

    def synchronize(self) -> None:
        """Waits until every update that was decided is applied. With `deferred`, call it before you
        read parameters outside of forward passes."""
        self._end_passes()
        for shard in self._shards:
            shard.wait_all()

    def values_changed(self, parameter: torch.Tensor) -> None:
        """Makes the master of a parameter what its values are: needed after writes in place through
        `parameter.data` on a GPU, in an offloaded model and with ranks. A step notices others."""
        self._end_passes()
        shard, index = self._places[parameter]
        shard.take_values(index)
