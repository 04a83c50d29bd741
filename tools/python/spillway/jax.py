"""An optimizer for JAX in the manner of optax, whose state lies in host memory or on disk.

    transformation = spillway.jax.offloaded_adamw(3e-4, nvme=["/disk"])
    state = transformation.init(params)
    updates, state = transformation.update(grads, state, params)
    params = optax.apply_updates(params, updates)

`update` may be jitted: gradients go to the host and parameters come back by an ordered callback.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import io_callback

from spillway._arguments import check_numbers, checked_norm, checked_options
from spillway._files import MARKS, OURS, written_whole
from spillway._load import native
from spillway._paths import Path, Paths, existing_folders, path_of
from spillway._state_folders import own_folders
from spillway.errors import InvalidArgumentError, NotSupportedError

__all__ = ["OffloadedState", "OffloadedTransformation", "offloaded_adamw"]

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


_AGAIN = ("optax.inject_hyperparams makes a transformation again in each update, and masters and "
          "moments are those of one: give learning_rate a function of the count of updates, which "
          "runs on the host and may read a value of the program")


class OffloadedState(NamedTuple):
    """What JAX sees of the state: how many updates were asked for, skipped ones included."""

    count: jax.Array


def _bits(array: Any) -> numpy.ndarray:
    """The array as numpy's, flat, and 16-bit types as their bits, which DLPack has a name for."""
    flat = numpy.ascontiguousarray(numpy.asarray(array)).reshape(-1)
    return flat if flat.dtype == numpy.float32 else flat.view(numpy.uint16)


def _described(params: Any) -> dict[str, tuple[Any, Any]]:
    """Shape and type of each parameter by its name."""
    return {jax.tree_util.keystr(path): (jnp.shape(leaf), jnp.result_type(leaf))
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


class _Rounded(NamedTuple):
    """Elements that are not the masters' value once the update is applied, because the difference
    was rounded: a few of those that crossed zero or became less than half."""

    at: numpy.ndarray      # their places in the flat array
    values: numpy.ndarray  # what they are instead


def _rounded(params: numpy.ndarray, values: numpy.ndarray) -> _Rounded:
    """What applying the update that leads from `params` to `values` does not bring there."""
    with numpy.errstate(all="ignore"):  # of values that are not finite
        applied = params + (values - params)
    at = numpy.flatnonzero(applied != values)
    return _Rounded(at, applied[at])


def _written(params: numpy.ndarray, values: numpy.ndarray, rounded: _Rounded) -> numpy.ndarray:
    """Whether each element is another one than the update before has led to. Both what applying it
    gives and the masters' own value are that: a compiler may leave roundings out."""
    written = params != values
    written[rounded.at] &= params[rounded.at] != rounded.values
    return written


class OffloadedTransformation:
    """An optax GradientTransformation: `init` and `update`. It serves one set of parameters.

    The masters are its own; `update` returns what leads from `params` to them, so that applying it
    gives their values, up to one rounding of the parameters' type. Parameters are of one type:
    float32, bfloat16 or float16. A step with a gradient that is not finite changes nothing.

    An update compares the state and `params` with those that the update before returned. Elements
    of `params` that are others, because the program pruned or loaded them or added to them, become
    those of the masters, however small the difference is; moments stay. A state of another update
    is refused.
    """

    def __init__(self, learning_rate: float | Callable[[int], Any], group: Any, options: Any,
                 max_norm: float) -> None:
        self._learning_rate = learning_rate
        self._group = group
        self._options = options
        self._max_norm = max_norm
        self._trainer: Any = None
        self._described: dict[str, tuple[Any, Any]] = {}  # the parameters
        self._count: int | None = None  # of the state that comes next; None: any
        self._rounded: list[_Rounded] = []  # of the update before, by leaf

    def init(self, params: Any) -> OffloadedState:
        """Takes the parameters; not within jit."""
        if self._trainer is not None:
            raise InvalidArgumentError("this transformation has parameters already; make another")
        if jax.process_count() > 1:
            raise NotSupportedError(
                f"JAX runs in {jax.process_count()} processes, which would train each for itself: "
                "run one process, or use optax with sharded arrays")
        leaves = jax.tree_util.tree_leaves_with_path(params)
        kinds = {str(leaf.dtype) for _, leaf in leaves}
        if len(kinds) != 1 or not kinds <= set(_DTYPES):
            raise NotSupportedError(f"parameters are of {', '.join(sorted(kinds))}; they must all "
                                    f"be of one of {', '.join(_DTYPES)}")
        self._options.dtype = _DTYPES[kinds.pop()]
        self._options.groups = [self._group]
        self._options.nvme = own_folders(self._options.nvme, self)
        self._trainer = native.Trainer(self._options, [
            (jax.tree_util.keystr(path), 0, _bits(leaf), None) for path, leaf in leaves])
        self._described = _described(params)
        self._count = 0
        nothing = numpy.empty(0, numpy.intp)
        self._rounded = [_Rounded(nothing, nothing) for _ in leaves]
        return OffloadedState(jnp.zeros((), jnp.int32))

    def update(self, updates: Any, state: OffloadedState,
               params: Any = None) -> tuple[Any, OffloadedState]:
        """Returns what to add to `params`, and the next state."""
        if params is None:
            raise InvalidArgumentError("update needs params: update(grads, state, params)")
        self._check_made()
        self._check_same("params are", params)
        leaves, structure = jax.tree_util.tree_flatten(params)
        given = jax.tree_util.tree_structure(updates)
        if given != structure:
            raise InvalidArgumentError(
                f"gradients are {given} and parameters {structure}: give each parameter a "
                "gradient, zeros where it has none; to leave parameters out, use optax.masked")
        self._check_same("gradients are", updates)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        values = io_callback(self._step, shapes, state.count, leaves,
                             jax.tree_util.tree_leaves(updates), ordered=True)
        deltas = [value - leaf for value, leaf in zip(values, leaves, strict=True)]
        return (jax.tree_util.tree_unflatten(structure, deltas),
                OffloadedState(state.count + 1))

    def _check_made(self) -> None:
        if self._trainer is None:
            raise InvalidArgumentError(
                f"this transformation has no parameters: call init. {_AGAIN}")

    def _check_same(self, what: str, tree: Any) -> None:
        """Raises for what has not the names, shapes and types of the parameters of init."""
        given = _described(tree)
        for name in [*self._described, *given]:
            mine, other = (each.get(name, ("no shape", "no type"))
                           for each in (self._described, given))
            if mine != other:
                raise InvalidArgumentError(
                    f"{what} not those of init: {name} has {other[0]} of {other[1]}, and had "
                    f"{mine[0]} of {mine[1]}: give it that (x.astype({mine[1]}) for its type), or "
                    "make a transformation for other parameters")

    def __getstate__(self) -> Any:
        raise NotSupportedError(
            "a transformation cannot be pickled or copied, for masters and moments are its own: "
            "save(folder), make another one, and load(folder) after init")

    def _step(self, count: Any, params: list[Any], gradients: list[Any]) -> list[numpy.ndarray]:
        if self._count is not None:
            self._check_count(int(count))
            for index, array in enumerate(params):
                self._take_writes(index, numpy.asarray(array).reshape(-1))
        rate = self._learning_rate
        self._group.lr = float(rate(self._trainer.updates) if callable(rate) else rate)
        self._trainer.set_group(0, self._group)
        try:
            for index, gradient in enumerate(gradients):
                self._trainer.add_gradient(index, _bits(gradient))
            self._trainer.step(1.0, self._max_norm)
        except BaseException:
            self._trainer.discard_gradients()  # the update may be asked for again
            raise
        self._count = int(count) + 1
        values = [self._values(index, array).copy() for index, array in enumerate(params)]
        self._rounded = [_rounded(numpy.asarray(array).reshape(-1), value.reshape(-1))
                         for array, value in zip(params, values, strict=True)]
        return values

    def _values(self, index: int, like: Any) -> numpy.ndarray:
        """The trainer's own memory of a parameter."""
        return numpy.from_dlpack(self._trainer.values(index)).view(like.dtype).reshape(like.shape)

    def _check_count(self, count: int) -> None:
        if count != self._count:
            raise InvalidArgumentError(
                f"the state is that after {count} updates, and this transformation has made "
                f"{self._count}: masters and moments are its own, and not in the state. Go on from "
                "the last state and parameters; for earlier ones, save(folder) with them and "
                "load(folder) before you go on. In optax.MultiSteps, which asks for updates that "
                "it drops, add up gradients yourself")

    def _take_writes(self, index: int, params: numpy.ndarray) -> None:
        """Makes the masters of what the program has written since the last update what it is."""
        values = self._values(index, params)
        written = _written(params, values, self._rounded[index])
        if written.any():
            before = values.copy()
            values[written] = params[written]
            try:
                self._trainer.take_values(index, changed=True)  # the others keep their masters
            except BaseException:
                values[:] = before  # so that the next update notices it again
                raise
            rounded = self._rounded[index]
            same = ~written[rounded.at]
            self._rounded[index] = _Rounded(rounded.at[same], rounded.values[same])

    def save(self, directory: Path) -> None:
        """Writes masters, moments and the number of updates to a folder. A checkpoint that is there
        is replaced once the new one is whole."""
        self._check_made()
        with written_whole(path_of(directory, "directory"), MARKS, OURS) as new:
            self._trainer.save(new)

    def load(self, directory: Path) -> None:
        """Takes what `save` wrote; the next update leads to where it goes on from there, from
        whatever state and parameters it is given."""
        self._check_made()
        self._trainer.load(path_of(directory, "directory"))
        self._count = None


def offloaded_adamw(learning_rate: float | Callable[[int], Any], b1: float = 0.9,
                    b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-4, *,
                    max_norm: float = 0.0, nvme: Paths = (),
                    state_format: str = "fp32", threads: int = 0,
                    seed: int = 1234) -> OffloadedTransformation:
    """AdamW as optax.adamw computes it, within roundings of fp32.

    `learning_rate` is a number or a schedule of the count of updates. `max_norm` clips the global
    norm; `nvme`, `state_format`, `threads` and `seed` are those of `spillway.torch`.
    """
    for name, value in (("learning_rate", learning_rate), ("b1", b1), ("b2", b2), ("eps", eps),
                        ("weight_decay", weight_decay), ("max_norm", max_norm)):
        if isinstance(value, jax.core.Tracer):
            raise NotSupportedError(f"{name} is a value within jit. {_AGAIN}")
    checked = checked_options(state_format=state_format, threads=threads, seed=seed)
    check_numbers({"b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay})
    group = native.Group()
    group.optimizer, group.decoupled = "adam", True
    group.beta1, group.beta2, group.eps, group.weight_decay = b1, b2, eps, weight_decay
    options = native.TrainerOptions()
    options.nvme = existing_folders(nvme, "nvme")
    for name in ("state_format", "threads", "seed"):
        setattr(options, name, checked[name])
    return OffloadedTransformation(learning_rate, group, options, checked_norm(max_norm))
