"""What the offloaded optimizers share: how they are made, and updates that are deferred."""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from spillway._arguments import checked_norm, checked_options
from spillway._paths import Paths, existing_folders
from spillway._state_folders import own_folders
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._alone import check_optimizer_alone, check_unwrapped
from spillway.torch._beside import Beside
from spillway.torch._handed_over import Uses
from spillway.torch._lifetime import Lifetime
from spillway.torch._partition import Partition
from spillway.torch._ranks import Ranks
from spillway.torch._rounds import Rounds
from spillway.torch._shard import Shard
from spillway.torch._state_elsewhere import StateElsewhere
from spillway.torch._steps import WithSteps
from spillway.torch.streaming import unit_of

_MISSING = ("skip", "zero", "refuse")
_ALONE = object()  # None is what torch.distributed.group.WORLD is before there are processes


def refuse(**values: Any) -> None:
    """Raises for arguments of torch.optim that are on."""
    for name, value in values.items():
        if value:
            raise NotSupportedError(f"{name}={value} is not supported; leave it out")


class _Waits:
    """A hook before the forward pass of a submodule. In a copy or a file of the model, whose
    parameters are not the optimizer's, it waits for nothing."""

    def __init__(self, wait: Callable[[torch.nn.Module, int], None] | None = None,
                 number: int = 0) -> None:
        self._wait, self._number = wait, number

    def __call__(self, part: torch.nn.Module, _arguments: Any) -> None:
        if self._wait is not None:
            self._wait(part, self._number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Waits, ()


class OffloadedOptimizer(WithSteps):
    """A torch.optim.Optimizer whose parameters, gradients and state are in Spillway's memory.

    `nvme` names folders on whose disks master weights and moments live; without it they are in host
    memory. `state_format` says how they are kept: "fp32" (12 bytes a parameter), and for bfloat16
    parameters "split" (10), "bf16" (6) or "int8" (4.03). `accumulation_steps` is the number of
    backward passes before each step, whose gradients are summed in fp32; None is any number of
    them, and the norm is then computed in `step`. `max_norm` clips the
    global gradient norm as torch.nn.utils.clip_grad_norm_ does; 0 switches it off. `deferred` is
    the module that the parameters belong to: a step then only decides its update, which runs while
    the program goes on. Each submodule waits for its own parameters before its forward pass, and
    whatever else torch does with a parameter waits for the update of that one.
    `missing` says what becomes of parameters without a gradient in a step: with "skip" they keep
    value, state and number of updates, as with torch's optimizers; with "zero" their gradient
    counts as zero, and with "refuse" `step` raises. It is "skip", and "refuse" with a
    `process_group`, where ranks would have to agree. `host_memory` is a budget such as "8GiB",
    `threads` the number of threads that update, `seed` that of stochastic rounding.
    `gradient_memory` is as much of gradients as may wait on a GPU to be brought to the host; then
    the backward pass waits.

    `process_group` is a group of torch.distributed whose ranks train copies of one model, each with
    batches of its own; gradients are averaged over them. Each rank keeps the state of an equal part
    of the parameters, and with `stage` 2, the default, gradients of that part alone (ZeRO). With
    `stage` 1 each sums its gradients of a step, and ranks exchange them once a step. `p.grad` is
    the mean over ranks. All ranks make the calls that exchange something: the optimizer,
    `backward`, `step`, what measures, reads or changes `p.grad`, `clip_grad_norm_`, `zero_grad`
    after a backward pass, `state_dict`, `load_state_dict`, `load`. With `deferred`, so do
    `synchronize`, `close`, `save`, and the module, whose forward passes exchange new values when
    they wait for them.

    A step with a gradient that is not finite changes nothing; `skipped_steps` counts them.
    `grad_norm` is the global norm of the last step, before clipping. Threads, tiers and formats on
    disk never change a bit; the order of backward passes that are accumulated does.

    `foreach` and `fused` of torch.optim choose how it computes, and change nothing here;
    `capturable`, `differentiable` and `maximize` must be off.

    State and folders go with the optimizer: with its last reference, with `close()`, at the end of
    a `with` block, or when another optimizer is made with one of its parameters. Parameters keep
    their values.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *,
                 nvme: Paths = (), state_format: str = "fp32",
                 accumulation_steps: int | None = 1, max_norm: float = 0.0,
                 deferred: torch.nn.Module | None = None, missing: str | None = None,
                 host_memory: str | int | None = None,
                 gradient_memory: str | int | None = None, threads: int = 0,
                 isa: str | None = None, seed: int = 1234,
                 process_group: Any = _ALONE, stage: int | None = None, foreach: bool | None = None,
                 fused: bool | None = None, capturable: bool = False,
                 differentiable: bool = False, maximize: bool = False) -> None:
        refuse(capturable=capturable, differentiable=differentiable, maximize=maximize)
        if missing is None:
            missing = "skip" if process_group is _ALONE else "refuse"
        if missing not in _MISSING:
            raise InvalidArgumentError(
                f'missing is "{missing}"; it is {", ".join(_MISSING)} or None')
        if missing == "skip" and process_group is not _ALONE:
            raise NotSupportedError('missing="skip" with a process_group is not supported: a '
                                    'parameter may have a gradient on one rank alone; use "zero"')
        options = checked_options(
            state_format=state_format, accumulation_steps=accumulation_steps, threads=threads,
            host_memory=host_memory, gradient_memory=gradient_memory, isa=isa, seed=seed)
        self._check_group(defaults, type(self).__name__)
        self._ranks = None
        if process_group is _ALONE:
            if stage is not None:
                raise InvalidArgumentError(
                    f"stage is {stage}, and there is no process_group whose ranks it is for: leave "
                    "it out, or give process_group=torch.distributed.group.WORLD")
            check_optimizer_alone()
        else:
            self._ranks = Ranks(process_group, 2 if stage is None else stage)
            self._rounds = Rounds(self._ranks)
        if deferred is not None:
            check_unwrapped(deferred, "deferred")
        self.max_norm: float = checked_norm(max_norm)
        self.grad_norm: float = 0.0
        self.skipped_steps = 0
        self._options = {**options, "nvme": existing_folders(nvme, "nvme"), "missing": missing,
                         "defers_updates": deferred is not None}
        self._given = dict(self._options)
        self._lifetime = Lifetime(self)
        self._options["nvme"] = self._lifetime.folders = own_folders(self._options["nvme"])
        self._places: dict[torch.Tensor, tuple[Shard | Partition, int]] = {}
        self._registered = []
        self._waited_for = None if deferred is None else set(deferred.parameters())
        self._shown = StateElsewhere(self)
        self._absent: list[tuple[int, int]] = []  # groups and numbers of parameters without state
        self._uses = Uses()
        self._beside = Beside(self)
        self._clip_next: float | None = None
        super().__init__(params, defaults)
        self._ready = True
        self._register()
        if deferred is not None:
            self._wait_before_forward(deferred)

    def options(self) -> dict[str, Any]:
        """Returns what it was made with, for its trainers."""
        return dict(self._given)

    @property
    def ranks(self) -> Ranks | None:
        """The ranks of `process_group`, or None without one."""
        return self._ranks

    def trains(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter has state here."""
        return parameter in self._places

    # Deferred updates.

    def _wait_before_forward(self, module: torch.nn.Module) -> None:
        """Makes forward passes wait: a submodule for its own parameters, and `module` for those of
        submodules that were not called in the pass before. Others may use these where nothing asks
        (see _pending.py), such as torch's fast paths of attention and compiled code."""
        optimizer = weakref.ref(self)  # a model may outlive its optimizer
        parts = [[parameter for parameter in part.parameters(recurse=False)
                  if unit_of(parameter) is None]  # a streamed one comes with its update
                 for part in module.modules()]
        passes: dict[bool, set[int]] = {}  # what was called in the last one, by mode of training
        called: set[int] = set()

        @torch.compiler.disable
        def wait(part: torch.nn.Module, number: int) -> None:
            nonlocal called
            waiting = {number}
            if number == 0:
                waiting |= set(range(len(parts))) - passes.get(part.training, set())
                passes[part.training] = called = set()
            called.add(number)
            if (alive := optimizer()) is not None:
                alive._wait([parameter for each in sorted(waiting) for parameter in parts[each]])

        for number, part in enumerate(module.modules()):
            if parts[number] or number == 0:
                self._lifetime.hooks.append(part.register_forward_pre_hook(
                    _Waits(wait, number)))
        # What was compiled before, or for a module without these hooks, does not call them.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch._dynamo.reset()

    def _wait(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter in self._places:
                shard, index = self._places[parameter]
                shard.wait(index)

    def synchronize(self) -> None:
        """Waits until every update that was decided is applied. With `deferred`, call it before you
        use memory of parameters that torch does not see you use, such as that of an array of numpy
        or of a view that you have kept."""
        self._end_passes()
        for shard in self._shards:
            shard.wait_all()

    def release_device(self) -> None:
        """Frees the device's memory between steps, as for a program that generates text there
        meanwhile. Until `resume_device`, all parameters and buffers are CPU tensors, which may be
        read, written, saved and loaded with `load_state_dict`; passes, gradients and `load` raise
        InvalidArgumentError. Nothing happens if the memory is free.

        Raises InvalidArgumentError where the step has gradients, and for a tensor in the memory of
        a parameter that moves, such as a view.
        """
        for shard in self._settled("release_device()", are_released=False):
            shard.release_device()
        for streaming in self._lifetime.streamings:
            streaming.move_buffers(torch.device("cpu"))
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what torch has freed, and keeps

    def resume_device(self) -> None:
        """Takes the memory again, and brings back what parameters and buffers are by now. Nothing
        happens if it is there.

        Raises OutOfMemoryError where somebody else has the memory: call it again then. A tensor in
        the memory of a parameter is refused as in `release_device`.
        """
        for shard in self._settled("resume_device()", are_released=True):
            shard.resume_device()
        for streaming in self._lifetime.streamings:
            streaming.move_buffers(streaming.device)

    def _settled(self, call: str, are_released: bool) -> list[Shard]:
        """Returns the shards that the call is for. Nothing uses the memory that they move, or this
        raises."""
        if self._ranks is not None:
            raise NotSupportedError(f"{call} with a process_group is not supported: leave the call "
                                    "out, or train in one process")
        self._end_passes()
        shards = [shard for shard in self._shards if shard.is_released == are_released]
        for shard in shards:
            shard.settle_device(call)
        for streaming in self._lifetime.streamings:
            streaming.settle()
        return shards

    def values_changed(self, parameter: torch.Tensor) -> None:
        """Makes the master of a parameter exactly what its values are, in state formats that would
        keep lower bits, too. Without it a step takes what was written and nothing else."""
        self._end_passes()
        shard, index = self._places[parameter]
        shard.notice_drops()
        shard.take_values(index)
