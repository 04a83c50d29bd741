"""An optimizer for JAX in the manner of optax, whose state lies in host memory or on disk.

    transformation = spillway.jax.offloaded_adamw(3e-4, nvme=["/disk"])
    state = transformation.init(params)
    updates, state = transformation.update(grads, state, params)
    params = optax.apply_updates(params, updates)

`update` may be jitted: gradients go to the host and parameters come back by an ordered callback.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import io_callback

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError

__all__ = ["OffloadedState", "OffloadedTransformation", "offloaded_adamw"]

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class OffloadedState(NamedTuple):
    """What JAX sees of the state: how many updates were asked for."""

    count: jax.Array


def _bits(array: Any) -> numpy.ndarray:
    """The array as numpy's, flat, and 16-bit types as their bits, which DLPack has a name for."""
    flat = numpy.ascontiguousarray(numpy.asarray(array)).reshape(-1)
    return flat if flat.dtype == numpy.float32 else flat.view(numpy.uint16)


class OffloadedTransformation:
    """An optax GradientTransformation: `init` and `update`. It serves one set of parameters.

    The masters are its own; `update` returns what leads from `params` to them, so that applying it
    gives their values, up to one rounding of the parameters' type. Parameters are of one type:
    float32, bfloat16 or float16. A step with a gradient that is not finite changes nothing.
    """

    def __init__(self, learning_rate: float | Callable[[int], Any], group: Any, options: Any,
                 max_norm: float) -> None:
        self._learning_rate = learning_rate
        self._group = group
        self._options = options
        self._max_norm = max_norm
        self._trainer: Any = None

    def init(self, params: Any) -> OffloadedState:
        """Takes the parameters; not within jit."""
        if self._trainer is not None:
            raise InvalidArgumentError("this transformation has parameters already; make another")
        leaves = jax.tree_util.tree_leaves_with_path(params)
        kinds = {str(leaf.dtype) for _, leaf in leaves}
        if len(kinds) != 1 or not kinds <= set(_DTYPES):
            raise NotSupportedError(f"parameters are of {', '.join(sorted(kinds))}; they must all "
                                    f"be of one of {', '.join(_DTYPES)}")
        self._options.dtype = _DTYPES[kinds.pop()]
        self._options.groups = [self._group]
        self._trainer = native.Trainer(self._options, [
            (jax.tree_util.keystr(path), 0, _bits(leaf), None) for path, leaf in leaves])
        return OffloadedState(jnp.zeros((), jnp.int32))

    def update(self, updates: Any, state: OffloadedState,
               params: Any = None) -> tuple[Any, OffloadedState]:
        """Returns what to add to `params`, and the next state."""
        if params is None:
            raise InvalidArgumentError("update needs params: update(grads, state, params)")
        leaves, structure = jax.tree_util.tree_flatten(params)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        values = io_callback(self._step, shapes, jax.tree_util.tree_leaves(updates), ordered=True)
        deltas = [value - leaf for value, leaf in zip(values, leaves, strict=True)]
        return (jax.tree_util.tree_unflatten(structure, deltas),
                OffloadedState(state.count + 1))

    def _step(self, gradients: list[Any]) -> list[numpy.ndarray]:
        arrays = [numpy.asarray(gradient) for gradient in gradients]
        for index, array in enumerate(arrays):
            self._trainer.add_gradient(index, _bits(array))
        rate = self._learning_rate
        self._group.lr = float(rate(self._trainer.updates) if callable(rate) else rate)
        self._trainer.set_group(0, self._group)
        self._trainer.step(1.0, self._max_norm)
        return [numpy.from_dlpack(self._trainer.values(index)).view(array.dtype)
                .reshape(array.shape).copy() for index, array in enumerate(arrays)]

    def save(self, directory: str | os.PathLike) -> None:
        """Writes masters, moments and the number of updates to a new folder."""
        self._trainer.save(os.fspath(directory))

    def load(self, directory: str | os.PathLike) -> None:
        """Takes what `save` wrote; the next update leads to where it goes on from there."""
        self._trainer.load(os.fspath(directory))


def offloaded_adamw(learning_rate: float | Callable[[int], Any], b1: float = 0.9,
                    b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-4, *,
                    max_norm: float = 0.0, nvme: Iterable[str | os.PathLike] = (),
                    state_format: str = "fp32", threads: int = 0,
                    seed: int = 1234) -> OffloadedTransformation:
    """AdamW as optax.adamw computes it, within roundings of fp32.

    `learning_rate` is a number or a schedule of the count of updates. `max_norm` clips the global
    norm; `nvme`, `state_format`, `threads` and `seed` are those of `spillway.torch`.
    """
    group = native.Group()
    group.optimizer, group.decoupled = "adam", True
    group.beta1, group.beta2, group.eps, group.weight_decay = b1, b2, eps, weight_decay
    options = native.TrainerOptions()
    options.nvme = [os.fspath(folder) for folder in nvme]
    options.state_format, options.threads, options.seed = state_format, threads, seed
    return OffloadedTransformation(learning_rate, group, options, max_norm)
