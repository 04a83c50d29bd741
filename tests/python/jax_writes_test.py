"""What a program writes to parameters between updates of spillway.jax, beside optax with masters in
float32 that the program writes itself."""
import contextlib

import jax
import jax.numpy as jnp
import numpy
import optax
import pytest
from jax._src import dispatch

from spillway.jax import offloaded_adamw

TYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def start(dtype):
    """Elements from a millionth to about 4."""
    keys = jax.random.split(jax.random.key(0), 2)
    return {"w": jax.random.normal(keys[0], (33, 17)).astype(dtype),
            "b": (jax.random.normal(keys[1], (41,)) ** 7 / 50).astype(dtype)}


def gradients_of(number, params):
    random = numpy.random.default_rng(number)
    return jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), params)


def wide(params):
    return jax.tree.map(lambda p: p.astype(jnp.float32), params)


def pruned(params):
    return jax.tree.map(lambda p: p * (abs(p.astype(jnp.float32)) > 0.05).astype(p.dtype), params)


def reloaded(params):
    return start(params["w"].dtype)


def one_element(params):
    return {**params, "w": params["w"].at[2, 3].add(0.5)}


def nothing(params):
    return params


def offloaded(rate, dtype, steps, write, jit):
    """Parameters after the updates; `write` is called after every fourth."""
    transformation = offloaded_adamw(rate, weight_decay=0.0)
    params = start(dtype)
    state = transformation.init(params)

    def step(params, state, grads):
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step) if jit else step
    for number in range(steps):
        params, state = step(params, state, gradients_of(number, params))
        params = write(params) if number % 4 == 3 else params
    return params


def mixed(rate, dtype, steps, write):
    """The same with masters that optax trains. An element that the program changes becomes the
    master's, and the others keep theirs."""
    transformation = optax.adamw(rate, weight_decay=0.0)
    masters = wide(start(dtype))
    state = transformation.init(masters)
    for number in range(steps):
        params = jax.tree.map(lambda p: p.astype(dtype), masters)
        grads = wide(gradients_of(number, params))
        updates, state = transformation.update(grads, state, masters)
        masters = optax.apply_updates(masters, updates)
        if number % 4 == 3:
            params = jax.tree.map(lambda p: p.astype(dtype), masters)
            masters = jax.tree.map(lambda new, old, master: jnp.where(
                new != old, new.astype(jnp.float32), master), write(params), params, masters)
    return masters


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("write", [pruned, reloaded, one_element, nothing])
def test_what_the_program_writes_becomes_the_masters(dtype, write, jit):
    rate, steps = 1e-3, 14
    ours = jax.tree.leaves(wide(offloaded(rate, dtype, steps, write, jit)))
    theirs = jax.tree.leaves(mixed(rate, dtype, steps, write))
    for mine, reference in zip(ours, theirs, strict=True):
        # One rounding of the parameters' type, of an element or of what it moved by, and two of
        # float32 in each step.
        bound = float(jnp.finfo(dtype).eps) * (abs(reference) + 4 * rate) + steps * 4 * 2**-24
        assert (abs(mine - reference) <= bound).all()


def test_elements_that_are_not_written_keep_masters_that_the_type_cannot_hold():
    # Each step is below half a rounding of most elements.
    rate, steps = 1e-4, 200
    ours = offloaded(rate, jnp.bfloat16, steps, one_element, jit=True)
    theirs = mixed(rate, jnp.bfloat16, steps, one_element)
    far = abs(ours["w"].astype(jnp.float32) - theirs["w"]) > 2**-8 * abs(theirs["w"]) + 4e-6
    assert not far.at[2, 3].set(False).any()


@pytest.mark.parametrize("jit", [False, True])
def test_roundings_of_an_update_that_is_applied_are_no_writes(jit):
    # Elements move by as much as they are, so that differences of bfloat16 are rounded.
    transformation, reference = (make(1e-2, weight_decay=0.0)
                                 for make in (offloaded_adamw, optax.adamw))
    ours = theirs = {"w": (start(jnp.float32)["w"] / 100).astype(jnp.bfloat16),
                     "s": jnp.asarray(0.01, jnp.bfloat16)}
    masters = wide(ours)
    state, other = transformation.init(ours), reference.init(masters)
    update = jax.jit(transformation.update) if jit else transformation.update
    for number in range(40):
        grads = gradients_of(number, ours)
        updates, state = update(grads, state, ours)
        ours = optax.apply_updates(ours, updates)
        updates, other = reference.update(wide(grads), other, masters)
        masters = optax.apply_updates(masters, updates)
        theirs = jax.tree.map(lambda p, m: p + (m.astype(p.dtype) - p), theirs, masters)
    # Optimizers whose float32 is rounded elsewhere seldom differ in what bfloat16 has of it.
    assert (ours["w"] != theirs["w"]).mean() < 0.01
    assert ours["s"] == theirs["s"]


@pytest.mark.parametrize("decay", [1e-7, 1e-6])
def test_small_writes_of_a_chain_add_up(decay):
    def run(first, decay):
        transformation = optax.chain(first, optax.add_decayed_weights(-decay))
        params = start(jnp.float32)
        state = transformation.init(params)
        step = jax.jit(transformation.update)
        for number in range(steps):
            updates, state = step(gradients_of(number, params), state, params)
            params = optax.apply_updates(params, updates)
        return params["w"]

    rate, steps = 1e-5, 300
    theirs = run(optax.adamw(rate, weight_decay=0.0), decay)
    effect = abs(theirs - run(optax.adamw(rate, weight_decay=0.0), 0.0))
    ours = run(offloaded_adamw(rate, weight_decay=0.0), decay)
    # A write is rounded in each step, always to the same side, and other roundings by chance.
    bound = (steps + 5 * steps**0.5) * 2**-24 * abs(theirs) + 1e-6
    assert (abs(ours - theirs) <= bound).all()
    assert float(effect.max()) > 1.2 * float(bound.max())


def forget_failure():
    """Ends the order of callbacks, of which one has failed: later ones would fail with it."""
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    dispatch.runtime_tokens.clear()
    jax.clear_caches()


def test_writes_before_an_update_that_fails_are_taken_and_taken_back():
    rate, failing = 1e-3, []

    def schedule(_):
        if failing:
            raise ArithmeticError(failing.pop())
        return rate

    transformation = offloaded_adamw(schedule, weight_decay=0.0)
    params = start(jnp.bfloat16)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for _ in range(3):
        updates, state = update(params, state, params)
        params = jax.block_until_ready(optax.apply_updates(params, updates))
    failing.append("failed once")
    with pytest.raises(Exception, match="failed once"):
        jax.block_until_ready(update(params, state, jax.tree.map(lambda p: p + 1, params)))
    forget_failure()
    updates, state = jax.jit(transformation.update)(params, state, params)
    after = optax.apply_updates(params, updates)
    for new, old in zip(jax.tree.leaves(wide(after)), jax.tree.leaves(wide(params)), strict=True):
        # A step is no longer than three of its rate here, plus two roundings of the element.
        assert (abs(new - old) <= 3 * rate + 2 * 2**-8 * abs(old)).all()
