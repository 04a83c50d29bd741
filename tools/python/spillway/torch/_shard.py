"""Parameters of one element type in a native trainer, which owns their memory from then on."""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from spillway._load import native
from spillway._state_folders import own_folders
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._device import device_of
from spillway.torch._frozen import FrozenHome, OnDisk
from spillway.torch._held import Held
from spillway.torch._layout import flattened, name_with, order_of, shaped
from spillway.torch._pending import make_pending, make_settled, register
from spillway.torch._registered import Registered, freed_values, references_of
from spillway.torch._uncut import uncut


_FREED = 64 << 20  #: bytes that are freed before the system has them again


def in_memory(elements: int) -> torch.Tensor:
    """Returns fp32 elements, whatever the program has made torch's default of types and devices."""
    return torch.empty(elements, dtype=torch.float32, device="cpu")


class Shard(Held):
    """Owns the memory of some parameters and trains them.

    `parameters` are of one dtype; the values are copied, and each parameter's `data` then refers
    to the trainer's memory, which is that of `place` but for streamed ones. So it is with `frozen`
    ones of any dtype, which nobody trains; those of units may be on disk, as `home` says. `entries`
    has both, in that order. `groups` are the numbers of the optimizer's groups that have a
    parameter here, in the order of the trainer's own.
    """

    def __init__(self, parameters: list[Registered], frozen: list[Registered],
                 hyperparameters: dict[int, Any], options: Any, place: torch.device,
                 home: FrozenHome | None = None) -> None:
        super().__init__([*parameters, *frozen], len(parameters), options.gradients_per_step)
        self.groups: list[int] = sorted({entry.group for entry in parameters})
        options.groups = [hyperparameters[group] for group in self.groups]
        self._orders = [order_of(parameter) for parameter in self._parameters]
        self._defers = options.defers_updates
        self._skips = options.missing == "skip"
        self.deciding: set[int] = set()  # parameters whose update may still run
        self.entered: int | None = None  # the unit that is on the device
        self.is_released: bool = False  # the device's memory is free
        streams = any(entry.unit is not None for entry in self.entries)
        self._on_device = dict.fromkeys(  # in their order, unless it is free
            index for index, entry in enumerate(self.entries)
            if entry.unit is None and (streams or place.type != "cpu"))
        self._device = device_of(place)
        self._device.configure(options)
        options.freed_values = freed_values(self._parameters, place)
        folders = [] if home is None else home.folders(options, parameters, frozen)
        options.frozen_nvme = own_folders(folders, self) if folders else []
        self._disk = OnDisk(self.entries, self._trained, folders)
        with self._device.current():
            self.trainer: Any = native.Trainer(options, [
                (name_with(entry.name, order), self.groups.index(entry.group),
                 flattened(entry.parameter.detach().cpu(), order), entry.unit)
                for entry, order in zip(parameters, self._orders, strict=False)], [
                (entry.name, entry.parameter.nbytes, entry.unit) for entry in frozen])
        self._move_frozen()
        self._hold([self._map(index) for index in range(len(self.entries))])
        if self._defers:
            register(self._parameters[:self._trained], self)
        self._sums: list[float] | None = None  # of the leaves, once all gradients are complete
        self._is_gathered = False  # a norm was computed since the last gradient

    def finish(self) -> None:
        """Waits for the update that is decided, if one is."""
        if self.deciding:
            self.wait_all()

    def release(self) -> None:
        """Applies an update that is decided, and ends the trainer."""
        del self.trainer
        self.end_updates(list(self.deciding))
        super().release()

    def updates(self, index: int) -> int:
        """How often a parameter was updated."""
        return self.trainer.updates_of(index)

    def set_updates(self, index: int, updates: int) -> None:
        """Sets that number."""
        self.trainer.set_updates_of(index, updates)

    def _view(self, index: int, values: Any) -> torch.Tensor:
        parameter = self._parameters[index]
        return shaped(torch.from_dlpack(values).view(parameter.dtype), parameter,
                      self._orders[index])

    def _move_frozen(self) -> None:
        """Moves what nobody trains one tensor, or one unit to disk, after the other, each of which
        is free then: the model is never there twice."""
        for unit in self._disk.write(self.trainer, self._bytes_of):
            for index in unit:
                self._parameters[index].data = self._map(index)
            native.release_freed_memory()
        freed = 0
        for index in range(self._trained, len(self.entries)):
            if self._disk.has(index):
                continue
            parameter = self._parameters[index]
            torch.from_dlpack(self.trainer.frozen_values(index - self._trained)).copy_(
                self._bytes_of(index))
            parameter.data = self._map(index)
            freed += parameter.nbytes
            if freed > _FREED:
                native.release_freed_memory()
                freed = 0

    def _bytes_of(self, index: int) -> torch.Tensor:
        return flattened(self._parameters[index].detach(), self._orders[index]).view(torch.uint8)

    def _note(self, index: int) -> None:
        super()._note(index)
        self._disk.note_written(index)

    def _map(self, index: int) -> torch.Tensor:
        """The trainer's values of a parameter, in its shape and without a copy."""
        frozen = index - self._trained
        return self._view(index, self.trainer.values(index) if frozen < 0
                          else self.trainer.frozen_values(frozen))

    def device_view(self, index: int) -> torch.Tensor:
        """The same where a streamed parameter is while its unit is entered."""
        frozen = index - self._trained
        return self._view(index, self.trainer.device_values(index) if frozen < 0
                          else self.trainer.device_frozen(frozen))

    def enter(self, unit: int, backward: bool) -> None:
        """Brings a unit to the device for a pass."""
        for _ in self._disk.write(self.trainer, self._bytes_of):
            pass
        self.trainer.enter(unit, backward)
        self.entered = unit

    def settle_device(self, call: str) -> None:
        """Returns once nothing uses the memory of parameters that move in the call which is next;
        raises where the program does."""
        self.finish()
        if self._any_received:
            raise InvalidArgumentError(f"{call} between a backward pass and its step(): call it "
                                       "after step(), or after zero_grad()")
        self.take_writes()
        if self._first_used() is not None:
            gc.collect()  # a cycle of references may have what nobody can use
        if (index := self._first_used()) is not None:
            raise InvalidArgumentError(
                f"another tensor uses the memory of {self.entries[index].name} (a view, p.data, an "
                "entry of state_dict(), or what a loss keeps for backward), which moves: delete "
                f"it, or keep a copy (.clone()), before {call}")

    def _first_used(self) -> int | None:
        return next((index for index in self._on_device
                     if references_of(self._memory[index]) > self._references[index]), None)

    def release_device(self) -> None:
        """Moves what stays on the device to the host, and frees the device's memory."""
        with uncut():
            self.trainer.release_device(self._device.stream())
            self._move(is_released=True)

    def resume_device(self) -> None:
        """Takes the memory again, and brings back what the parameters are by now."""
        with uncut():
            self.trainer.resume_device()
            self._move(is_released=False)

    def _move(self, is_released: bool) -> None:
        self.is_released = is_released
        for index in self._on_device:
            self.swap(index, self._map(index))
            self._references[index] = references_of(self._memory[index])

    def leave(self, unit: int) -> None:
        """Ends the pass of a unit, whose memory is another unit's once torch has read it."""
        self.entered = None
        self.trainer.leave(unit, self._device.stream())

    def forget_uploads(self) -> None:
        """Makes passes that begin from now on read what was written in host memory."""
        self.trainer.forget_uploads()

    def _hand_over(self, index: int, gradient: torch.Tensor) -> bool:
        self.reopen()
        self._device.add_gradient(self.trainer, index, flattened(gradient, self._orders[index]))
        self.end_updates([index])  # the gradient's memory was read by then
        return True

    # Gradients that are here, and are tensors of the program's too.

    def reopen(self) -> None:
        """Takes more gradients and passes after norms were computed."""
        if self._is_gathered:
            self.trainer.reopen_gradients()
            self._note_open()

    def _note_open(self) -> None:
        """Notes that the trainer takes more gradients, and that norms are to be computed again."""
        self._sums, self._is_gathered = None, False

    def _check_between_passes(self) -> None:
        """Raises where a gradient is used while a block is on the device."""
        if self.entered is not None:
            raise NotSupportedError(
                f"p.grad of a parameter is used in a hook while block {self.entered} is on the "
                "device: use it once the backward pass is over, or use the gradient that comes in "
                "p.register_hook(function); zero_grad() forgets this step")

    def gradient(self, index: int) -> torch.Tensor:
        """Returns a copy of the sum of a parameter's gradients, in fp32 and in its shape."""
        self._check_between_passes()
        self._note_open()
        return self._read_gradient(index, last=False)

    def last_gradient(self, index: int) -> torch.Tensor:
        """Returns that of the last step, which stays where the update has read it until the next
        one comes. A block may be on the device."""
        return self._read_gradient(index, last=True)

    def _read_gradient(self, index: int, last: bool) -> torch.Tensor:
        parameter = self._parameters[index]
        values = in_memory(parameter.numel())
        self.trainer.read_gradient(index, values, last)
        return shaped(values, parameter, self._orders[index])

    def _replace(self, index: int, gradient: torch.Tensor) -> None:
        """Makes a tensor of the parameter's shape the sum of its gradients."""
        self._note_open()
        self.trainer.write_gradient(index, flattened(
            gradient.detach().to("cpu", torch.float32), self._orders[index]))

    def gradient_norm(self, index: int) -> float:
        """Returns the L2 norm of that sum, as the update computes it."""
        sums = self.leaf_sums()[self._leaves[index]:self._leaves[index + 1]]
        return native.norm_of(torch.tensor(sums, dtype=torch.float64, device="cpu"),
                              [self._parameters[index].numel()])

    def leaf_sums(self) -> list[float]:
        """Returns the sums of squares of which norms are made, one for each leaf."""
        if self._sums is None:
            self._check_between_passes()
            self._is_gathered = True
            self._sums = self.trainer.leaf_sums()
        return self._sums

    def _scale(self, index: int, factor: float) -> None:
        self._replace(index, self.gradient(index).mul_(factor))

    def _accumulate(self, index: int, gradient: torch.Tensor) -> bool:
        if self.entries[index].unit is not None:
            return super()._accumulate(index, gradient)  # its unit is entered
        self._replace(index, self.gradient(index).add_(gradient.detach().to("cpu")))
        return True

    def take_home(self) -> None:
        """Takes the values of gradients that the program has in `grad`."""
        for index, left in self._left.items():
            if left.home is None or not left.stands_in(self._parameters[index]):
                continue
            if self._received[index] > 0:
                self._replace(index, left.home)
            else:  # it had been set to zero, or is of the last step
                self._hand_over(index, left.home.detach().to(self._parameters[index].dtype))
                self._received[index], self._any_received = 1, True
            left.home, self._parameters[index].grad = None, left

    def norm(self, divisor: float) -> float:
        """Returns the norm of the gradients of the step, which are complete."""
        self._is_gathered = True
        return self.trainer.grad_norm(divisor)

    def step(self, divisor: float, max_norm: float, norm: float | None) -> tuple[float, bool]:
        """Updates; returns the norm of the gradients and whether the update was skipped. `norm` is
        that of all gradients where this shard has a part of them."""
        _, norm, skipped = self.trainer.step(divisor, max_norm, self._device.stream(), norm)
        if not skipped:
            self._note_update(all_of_them=not self._skips)
        self.end_step(self._forget)
        if self._defers and not skipped:
            self.deciding = set(range(self._trained))
            make_pending(self._parameters[:self._trained])
        return norm, skipped

    def _drop(self, index: int) -> None:
        self.trainer.discard_gradient(index)

    def discard_gradients(self) -> None:
        """Forgets the gradients of the step that is under way."""
        if self._any_received:
            self.trainer.discard_gradients()
        self._forget()

    def _forget(self) -> None:
        self._note_open()
        self._device.release(self.trainer)
        super()._forget()

    def end_updates(self, indices: list[int]) -> None:
        """Notes that the updates of parameters are over, if any were decided."""
        if not self.deciding:
            return
        self.deciding.difference_update(indices)
        make_settled(self._parameters[index] for index in indices)

    def wait(self, index: int) -> None:
        """Waits for the update of a parameter that was decided."""
        if index not in self.deciding:
            return
        try:
            self.trainer.wait(index)
        except InvalidArgumentError as error:
            if (entry := self.entries[index]).unit is None:
                raise
            raise InvalidArgumentError(
                f"{entry.name} is of block {entry.unit}, and was used in another block while its "
                "deferred update may have been under way: use it outside of blocks, or call "
                f"optimizer.synchronize() before ({error})") from error
        self._settle([index])

    def is_deciding(self, index: int) -> bool:
        """Whether the update of a parameter may be under way."""
        return index in self.deciding

    def wait_all(self) -> None:
        """Does that for all of them."""
        self.trainer.wait_all()
        self._settle(list(self.deciding))

    def _settle(self, indices: list[int]) -> None:
        """Notes that updates are over."""
        self.end_updates(indices)
        self._note_applied(indices)

    def _take_back(self, index: int) -> None:
        self.wait(index)
        super()._take_back(index)

    def _hides_writes(self, index: int) -> bool:
        return self.entries[index].unit is not None or index in self._on_device

    def _take_values(self, index: int, changed: bool) -> None:
        # What changed in host memory, the trainer finds whenever it uses the master.
        if index < self._trained and (index in self._on_device or not changed):
            self.trainer.take_values(index, self._device.stream(), changed)

    def read(self, index: int, master: bool, m: bool, v: bool,
             allocate: Callable[[int], torch.Tensor]) -> list[torch.Tensor | None]:
        """State of a parameter as fp32 tensors of its shape; None for what is not wanted.
        `allocate` returns as many elements as it is told."""
        parameter = self._parameters[index]
        arrays = [allocate(parameter.numel()) if wanted else None for wanted in (master, m, v)]
        self.trainer.read_state(index, *arrays)
        return [None if array is None else shaped(array, parameter, self._orders[index])
                for array in arrays]

    def write(self, index: int, master: torch.Tensor | None, m: torch.Tensor | None,
              v: torch.Tensor | None) -> None:
        """Sets the state of a parameter; without a master it keeps its own, and moments that are
        None become zero."""
        self.check_state(index, master, m, v)
        flat = [None if tensor is None else
                flattened(tensor.detach().to("cpu", torch.float32), self._orders[index])
                for tensor in (master, m, v)]
        self.take_write(index)
        self.trainer.write_state(index, *flat)

    def load(self, folder: str) -> None:
        """Takes a checkpoint, which replaces what the program has written."""
        self.take_writes()
        self.trainer.load(folder)

    def publish(self) -> None:
        """Makes the parameters what their masters are. Here they are it."""
