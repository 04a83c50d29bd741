"""spillway.jax beside optax: the same trajectory, jitted or not, on every tier."""
import jax
import jax.numpy as jnp
import numpy
import optax
import pytest

import spillway
from spillway.jax import offloaded_adamw


def start(dtype):
    keys = jax.random.split(jax.random.key(0), 2)
    return {"w": jax.random.normal(keys[0], (13, 7)).astype(dtype),
            "b": [jax.random.normal(keys[1], (5,)).astype(dtype)]}


def run(make, steps=100, dtype=jnp.float32, jit=True, before=None):
    params = start(dtype) if before is None else before[0]
    transformation = make()
    state = transformation.init(params)
    if before is not None:
        transformation.load(before[1])

    def step(params, state, grads):
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step) if jit else step
    first = 0 if before is None else before[2]
    for number in range(first, steps):
        random = numpy.random.default_rng(number)
        grads = jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), params)
        params, state = step(params, state, grads)
    return params, transformation


def leaves(params):
    return [numpy.asarray(leaf, dtype=numpy.float64) for leaf in jax.tree.leaves(params)]


def schedule(count):
    return 1e-2 / (1 + count / 20)


def test_trajectory_is_that_of_optax():
    ours, _ = run(lambda: offloaded_adamw(schedule, weight_decay=0.1, max_norm=1.0))
    theirs, _ = run(lambda: optax.chain(optax.clip_by_global_norm(1.0),
                                        optax.adamw(schedule, weight_decay=0.1)))
    for mine, reference in zip(leaves(ours), leaves(theirs), strict=True):
        # Two roundings of fp32 in each of 100 steps, of values near 3, and optax clips without
        # the 1e-6 beside the norm of torch.
        assert numpy.abs(mine - reference).max() < 200 * 3 * 2**-24
    assert max(numpy.abs(a - b).max() for a, b in
               zip(leaves(ours), leaves(start(jnp.float32)), strict=True)) > 0.1


@pytest.mark.parametrize("dtype, state_format", [
    (jnp.float32, "fp32"), (jnp.bfloat16, "split"), (jnp.bfloat16, "int8")])
def test_disk_jit_and_resume_change_no_bit(tmp_path, dtype, state_format):
    def make(**more):
        return lambda: offloaded_adamw(1e-2, state_format=state_format, **more)

    usual, _ = run(make(), 12, dtype)
    for other, _ in (run(make(nvme=[tmp_path / "state"]), 12, dtype),
                     run(make(), 12, dtype, jit=False)):
        assert all(map(numpy.array_equal, leaves(other), leaves(usual)))
    half, transformation = run(make(), 6, dtype)
    transformation.save(tmp_path / "saved")
    resumed, _ = run(make(), 12, dtype, before=(half, tmp_path / "saved", 6))
    assert all(map(numpy.array_equal, leaves(resumed), leaves(usual)))


def test_misuse_is_named():
    transformation = offloaded_adamw(1e-2)
    with pytest.raises(spillway.NotSupportedError, match="int32"):
        transformation.init({"w": jnp.zeros(3, jnp.int32)})
    state = transformation.init({"w": jnp.zeros(3)})
    with pytest.raises(spillway.InvalidArgumentError, match="needs params"):
        transformation.update({"w": jnp.zeros(3)}, state)
    with pytest.raises(spillway.InvalidArgumentError, match="make another"):
        transformation.init({"w": jnp.zeros(3)})
