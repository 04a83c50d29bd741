"""spillway.jax beside optax: the same trajectory, jitted or not, on every tier."""
import copy
import pickle

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
    for other, _ in (run(make(nvme=[tmp_path]), 12, dtype),
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


def stepper(transformation):
    @jax.jit
    def step(params, state, grads):
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state
    return step


def gradients_of(step, params):
    random = numpy.random.default_rng(step)
    return jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), params)


def close(ours, theirs, bound):
    return all(numpy.abs(a - b).max() < bound
               for a, b in zip(leaves(ours), leaves(theirs), strict=True))


@pytest.mark.parametrize("project", [
    lambda params: jax.tree.map(lambda p: jnp.clip(p, -0.5, 0.5), params),
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda params: {**params, "w": params["w"].at[2, 3].set(7.0)}])
def test_parameters_that_the_program_writes_become_those_of_the_masters(project):
    ours = theirs = start(jnp.float32)
    transformation, reference = offloaded_adamw(1e-2), optax.adamw(1e-2)
    mine, other = transformation.init(ours), reference.init(theirs)
    step, optaxs = stepper(transformation), stepper(reference)
    for number in range(12):
        ours, mine = step(ours, mine, gradients_of(number, ours))
        theirs, other = optaxs(theirs, other, gradients_of(number, theirs))
        if number % 3 == 2:
            ours, theirs = project(ours), project(theirs)
    # Two roundings of fp32 in each of 12 steps, of values below 8.
    assert close(ours, theirs, 24 * 8 * 2**-24)


def test_what_comes_after_in_a_chain_is_what_the_masters_are():
    ours = theirs = start(jnp.float32)
    chains = [optax.chain(first, optax.scale(0.5))
              for first in (offloaded_adamw(1e-2), optax.adamw(1e-2))]
    states = [chain.init(ours) for chain in chains]
    for number in range(8):
        ours, states[0] = stepper(chains[0])(ours, states[0], gradients_of(number, ours))
        theirs, states[1] = stepper(chains[1])(theirs, states[1], gradients_of(number, theirs))
    assert close(ours, theirs, 16 * 4 * 2**-24)


def test_a_state_of_another_update_is_refused(tmp_path):
    params = start(jnp.float32)
    transformation = offloaded_adamw(1e-2)
    state = transformation.init(params)
    step = stepper(transformation)
    kept = params, state
    expected = []
    for number in range(3):
        params, state = step(params, state, gradients_of(number, params))
        jax.block_until_ready(params)
        expected.append(params)
        if number == 0:
            transformation.save(tmp_path / "saved")
            kept = params, state
    with pytest.raises(Exception, match="the state is that after 1 updates.*has made 3"):
        jax.block_until_ready(step(*kept, gradients_of(1, params)))
    jax.clear_caches()
    transformation.load(tmp_path / "saved")
    again, state = stepper(transformation)(*kept, gradients_of(1, params))
    assert all(map(numpy.array_equal, leaves(again), leaves(expected[1])))


@pytest.mark.parametrize("which", ["the schedule", "a gradient"])
def test_an_update_that_failed_is_made_again(which):
    failed = []

    def rate(count):
        if which == "the schedule" and count == 1 and not failed:
            failed.append(count)
            raise ArithmeticError("failed once")
        return 1e-2

    params = start(jnp.float32)
    transformation = offloaded_adamw(rate)
    state = transformation.init(params)
    step = stepper(transformation)
    for number in range(3):
        gradients = gradients_of(number, params)
        if number == 1:
            wrong = dict(gradients)
            if which == "a gradient":
                wrong["w"] = wrong["w"].astype(jnp.bfloat16)
                transformation._check_same = lambda *_: None  # so that the callback fails
            with pytest.raises(Exception, match="failed once|it must be fp32"):
                jax.block_until_ready(step(params, state, wrong))
            jax.clear_caches()
            step = stepper(transformation)
        params, state = step(params, state, gradients)
        jax.block_until_ready(params)
    usual, _ = run(lambda: offloaded_adamw(1e-2), 3)
    assert all(map(numpy.array_equal, leaves(params), leaves(usual)))


def test_a_limit_of_the_norm_that_is_none_is_refused():
    with pytest.raises(spillway.InvalidArgumentError, match="max_norm is -1.0; it must be above"):
        offloaded_adamw(1e-2, max_norm=-1.0)


def test_updates_that_a_wrapper_drops_are_refused():
    params = start(jnp.float32)
    wrapped = optax.MultiSteps(offloaded_adamw(1e-2), every_k_schedule=2)
    state = wrapped.init(params)
    with pytest.raises(Exception, match="optax.MultiSteps"):
        for number in range(4):
            params, state = stepper(wrapped)(params, state, gradients_of(number, params))
            jax.block_until_ready(params)


def changed(params, dtype):
    return jax.tree_util.tree_map(lambda leaf: leaf.astype(dtype), params)


@pytest.mark.parametrize("jit", [False, True])
def test_trees_that_are_not_those_of_init_are_refused(jit):
    for dtype, other in ((jnp.bfloat16, jnp.float16), (jnp.bfloat16, jnp.float32),
                         (jnp.float32, jnp.bfloat16)):
        params = changed({"a": jnp.ones((3, 4)), "b": jnp.ones(5)}, dtype)
        transformation = offloaded_adamw(1e-2)
        state = transformation.init(params)
        update = jax.jit(transformation.update) if jit else transformation.update
        with pytest.raises(spillway.InvalidArgumentError, match=r"gradients are not.*astype"):
            update(changed(params, other), state, params)
        for wrong in ({"a": params["a"]}, {"a": params["a"].T, "b": params["b"]},
                      {"a": params["a"], "c": params["b"]}, changed(params, other)):
            with pytest.raises(spillway.InvalidArgumentError, match="params are not those of ini"):
                update(wrong, state, wrong)
        update(params, state, params)


def test_a_transformation_is_one_and_says_what_it_lacks(tmp_path):
    transformation = offloaded_adamw(1e-2)
    for call in (transformation.save, transformation.load):
        with pytest.raises(spillway.InvalidArgumentError, match="has no parameters: call init"):
            call(tmp_path / "state")
    transformation.init({"w": jnp.zeros(3)})
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(spillway.NotSupportedError, match="cannot be pickled or copied.*load"):
            call(transformation)


def test_several_processes_of_jax_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(spillway.NotSupportedError, match="in 2 processes"):
        offloaded_adamw(1e-2).init({"w": jnp.zeros(3)})


@pytest.mark.parametrize("jit", [False, True])
def test_hyperparameters_that_optax_injects_are_refused_by_name(jit):
    params = start(jnp.float32)
    transformation = optax.inject_hyperparams(offloaded_adamw)(learning_rate=1e-2)
    state = transformation.init(params)
    update = jax.jit(transformation.update) if jit else transformation.update
    with pytest.raises(spillway.Error, match=r"inject_hyperparams.*function of the count"):
        update(gradients_of(0, params), state, params)


def test_a_rate_that_the_program_sets_is_that_of_injected_hyperparameters():
    rate = [0.0]
    ours = theirs = {**start(jnp.float32), "none": None}
    transformation = offloaded_adamw(lambda _: rate[0])
    reference = optax.inject_hyperparams(optax.adamw)(learning_rate=0.0)
    mine, other = transformation.init(ours), reference.init(theirs)
    step, optaxs = stepper(transformation), stepper(reference)
    for number in range(8):
        rate[0] = 1e-2 * (1 + number % 3)
        other.hyperparams["learning_rate"] = jnp.asarray(rate[0])
        ours, mine = step(ours, mine, gradients_of(number, ours))
        theirs, other = optaxs(theirs, other, gradients_of(number, theirs))
        jax.block_until_ready(ours)  # the rate is read while the update runs
    assert ours["none"] is None
    # Two roundings of fp32 in each of 8 steps, of values below 8.
    assert close(ours, theirs, 16 * 8 * 2**-24)


@pytest.mark.parametrize("jit", [False, True])
def test_gradients_of_another_tree_are_refused(jit):
    params = start(jnp.float32)
    transformation = offloaded_adamw(1e-2)
    state = transformation.init(params)
    update = jax.jit(transformation.update) if jit else transformation.update
    for grads in ({**params, "w": None}, {**params, "b": [None]}, params["b"]):
        with pytest.raises(spillway.InvalidArgumentError, match="give each parameter a gradient"):
            update(grads, state, params)
    updates, state = update(params, state, params)
    assert int(state.count) == 1
