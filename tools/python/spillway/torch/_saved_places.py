"""What backward passes keep of the entered unit: places instead of tensors, whose memory is another
unit's soon."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.function import BackwardCFunction

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._quantized import is_wrapper


class Passed(NamedTuple):
    """A tensor of no unit that a unit's pass has saved, or what other hooks keep of it."""

    unit: int
    packed: Any
    unpack: Any


class Saved(NamedTuple):
    """What is kept of a tensor that lies in a streamed one."""

    unit: int
    place: int  # of the streamed tensor in its unit
    changes: tuple[int, int]  # of it so far
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class SavedWrapper(NamedTuple):
    """What is kept of a tensor whose bytes lie in streamed ones."""

    kind: Any
    inner: dict[str, Any]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]


Hooks = tuple[Any, Any]  #: of somebody else, which are given tensors that are not streamed


class Units(Protocol):
    """What enters units."""

    def entered(self) -> int | None:
        """Returns the unit whose tensors are on the device."""

    def enter_again(self, unit: int) -> None:
        """Brings them there in a backward pass, if they are not."""

    def tensors_of(self, unit: int) -> list[torch.Tensor]:
        """Returns the tensors of a unit."""

    def name_of(self, unit: int, place: int) -> str:
        """Returns the name of one."""

    def changes_of(self, unit: int, place: int) -> tuple[int, int]:
        """Counts its changes."""


class Places:
    """Puts places where tensors of units would be kept, and tensors where places are used."""

    def __init__(self, units: Units) -> None:
        self._units = units

    def pack(self, tensor: torch.Tensor, others: Hooks) -> Any:
        """Returns what is kept of a tensor while a unit is entered."""
        if isinstance(kept := self._place(tensor), (Saved, SavedWrapper)):
            return kept
        tensor = tensor if kept is None else kept
        return Passed(self._units.entered(), tensor if others[0] is None else others[0](tensor),
                      others[1])

    def unpack(self, saved: Any) -> torch.Tensor:
        """Returns the tensor, for which the unit is entered."""
        if isinstance(saved, torch.Tensor):  # in a wrapper
            return saved
        if isinstance(saved, Passed):
            # A part of the block that is recomputed begins with what it was given, and calls
            # nothing else of ours before it uses parameters.
            if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
                self._units.enter_again(saved.unit)
            return saved.packed if saved.unpack is None else saved.unpack(saved.packed)
        if torch.is_grad_enabled():
            raise NotSupportedError(
                "create_graph=True goes through a streamed block: the graph of the second "
                "derivative would keep parameters that leave the device; compute it with a model "
                "that is not offloaded, or with functions that use no parameter of a block")
        if isinstance(saved, SavedWrapper):
            inner = {key: self.unpack(each) for key, each in saved.inner.items()}
            return saved.kind.__tensor_unflatten__(inner, saved.context, saved.size, saved.stride)
        units = self._units
        units.enter_again(saved.unit)
        if units.changes_of(saved.unit, saved.place) != saved.changes:
            raise InvalidArgumentError(
                f"{units.name_of(saved.unit, saved.place)} was written, or step() was called, "
                "between a forward pass and its backward pass, which needs the values of before: "
                "run the forward pass again")
        whole = units.tensors_of(saved.unit)[saved.place].detach()
        return whole.as_strided(saved.size, saved.stride, whole.storage_offset() + saved.offset)

    def _place(self, tensor: torch.Tensor) -> Any:
        """Returns what is kept of a tensor that lies in the entered unit; None for another one."""
        if is_wrapper(tensor):
            return self._place_of_wrapper(tensor)
        if tensor.layout != torch.strided:
            return None
        units, address = self._units, tensor.data_ptr()
        unit = units.entered()
        for place, whole in enumerate(units.tensors_of(unit)):
            offset = address - whole.data_ptr()
            if not 0 <= offset < max(whole.nbytes, 1):
                continue
            if tensor.dtype == whole.dtype:
                return Saved(unit, place, units.changes_of(unit, place),
                             offset // tensor.element_size(), tensor.shape, tensor.stride())
            return tensor.clone()  # of another type, such as view_as_complex
        return None

    def _place_of_wrapper(self, tensor: torch.Tensor) -> Any:
        keys, context = tensor.__tensor_flatten__()
        inner = {key: getattr(tensor, key) for key in keys}
        kept = {key: self._place(each) for key, each in inner.items()}
        if all(each is None for each in kept.values()):
            return None
        return SavedWrapper(type(tensor), {key: inner[key] if each is None else each
                                           for key, each in kept.items()},
                            context, tensor.size(), tensor.stride())

    # What functions of the program keep by themselves, as attributes of their context.

    def note_functions(self, unit: int, result: Any, given: Any) -> None:
        """Makes functions of Python between what a block was given and its result keep places, and
        enter the unit for their backward passes, in which they may use what they keep otherwise:
        a state, or a module."""
        for node in _nodes_between(result, given):
            attributes = vars(node)
            places = {key: packed for key, value in attributes.items()
                      if (packed := _mapped(value, self._place)) is not value}
            attributes.update(places)
            node.register_prehook(self._before(unit, attributes, places))
            if places:
                node.register_hook(self._after(attributes, places))

    def _before(self, unit: int, attributes: dict[str, Any],
                places: dict[str, Any]) -> Callable[..., None]:
        def enter(_gradients: Any) -> None:
            self._units.enter_again(unit)
            attributes.update({key: _mapped(value, self.unpack, of=(Saved, SavedWrapper))
                               for key, value in places.items()})

        return enter

    @staticmethod
    def _after(attributes: dict[str, Any], places: dict[str, Any]) -> Callable[..., None]:
        def leave(_inputs: Any, _outputs: Any) -> None:
            attributes.update(places)

        return leave


def _mapped(value: Any, function: Callable[[Any], Any], of: Any = torch.Tensor) -> Any:
    """Returns a value with what `function` returns for each that it has of a class, where that is
    not None; the value itself where nothing changes."""
    if isinstance(value, of):
        new = function(value)
        return value if new is None else new
    if type(value) in (tuple, list):
        items = [_mapped(each, function, of) for each in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    if type(value) is dict:
        entries = {key: _mapped(each, function, of) for key, each in value.items()}
        return value if all(entries[key] is value[key] for key in value) else entries
    return value


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)


def _nodes_between(result: Any, given: Any) -> Iterator[Any]:
    """Returns the nodes of Python's functions in the graph of `result`, as far as what was
    given."""
    seen = {tensor.grad_fn for tensor in _tensors_in(given)}
    waiting = [tensor.grad_fn for tensor in _tensors_in(result)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            yield node
        waiting += [following for following, _ in node.next_functions]
