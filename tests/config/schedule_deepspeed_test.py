"""Schedules and dynamic loss scale against DeepSpeed's own classes, driven as its engine drives
them: the optimizer steps with the rate in its param group, then the scheduler steps.
Usage: schedule_deepspeed_test.py SCHEDULE_PRINT"""

import json
import logging
import random
import subprocess
import sys

import pytest
import torch
from deepspeed import comm
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler
from deepspeed.runtime.precision_config import DeepSpeedFP16Config
from deepspeed.utils import logger

SCHEDULE_PRINT = sys.argv[-1]
LR = 3e-4
STEPS = 10_000
logger.setLevel(logging.ERROR)
comm.get_rank = lambda group=None: 0  # one process without a process group


def ours(config, *arguments):
    done = subprocess.run([SCHEDULE_PRINT, *arguments], input=json.dumps(config),
                          capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def our_rates(kind, params, optimizer="AdamW", steps=STEPS):
    lines = ours({"optimizer": {"type": optimizer, "params": {"lr": LR, "betas": [0.85, 0.95]}},
                  "scheduler": {"type": kind, "params": params}}, str(steps))
    return [tuple(float(number) for number in line.split()) for line in lines]


def their_rates(kind, params, steps=STEPS):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=(0.85, 0.95))
    scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    used = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        used.append((group["lr"], group["betas"]))
        scheduler.step()
    return used


def expect_equal(kind, params, exact, steps=STEPS):
    found = [rate[0] for rate in our_rates(kind, params, steps=steps)]
    expected = [rate for rate, _ in their_rates(kind, params, steps)]
    if exact:
        assert found == expected
    else:
        # Their log and cos are the C library's, ours a series; each is within 4e-16, and two of
        # them are divided.
        peak = max(max(expected), LR)
        assert found == pytest.approx(expected, rel=0, abs=2e-15 * peak)


@pytest.mark.parametrize("warmup", [1, 2, 3, 10, 999, 5_000, 9_999, 10_000, 50_000])
@pytest.mark.parametrize("shape", ["linear", "log"])
@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_warmup_schedules(kind, shape, warmup):
    params = {"warmup_num_steps": warmup, "warmup_type": shape}
    if kind != "WarmupLR":
        params["total_num_steps"] = 8_000
    exact = shape == "linear" and kind != "WarmupCosineLR"
    expect_equal(kind, params, exact)
    if kind == "WarmupCosineLR":
        expect_equal(kind, {**params, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05}, exact)
    else:
        expect_equal(kind, {**params, "warmup_min_lr": 1e-5, "warmup_max_lr": 7e-4}, exact)


@pytest.mark.parametrize("last", [0, 5, 99, 100, 250])
@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                  "LRRangeTest"])
def test_a_schedule_that_is_told_where_it_is(kind, last):
    params = {"last_batch_iteration": last}
    if kind == "OneCycle":
        params |= {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 100}
    elif kind != "LRRangeTest":
        params |= {"warmup_num_steps": 100, "warmup_type": "linear"}
    if kind in ("WarmupDecayLR", "WarmupCosineLR"):
        params["total_num_steps"] = 200
    expect_equal(kind, params, exact=kind != "WarmupCosineLR", steps=400)


def test_absent_parameters_are_deepspeeds():
    expect_equal("WarmupLR", {}, exact=False)
    expect_equal("WarmupDecayLR", {"total_num_steps": 9_000}, exact=False)
    expect_equal("WarmupCosineLR", {"total_num_steps": 9_000}, exact=False)
    expect_equal("OneCycle", {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3}, exact=True)
    expect_equal("LRRangeTest", {}, exact=True)


@pytest.mark.parametrize("staircase", [False, True])
def test_range_test(staircase):
    expect_equal("LRRangeTest", {"lr_range_test_min_lr": 1e-6, "lr_range_test_step_size": 77,
                                 "lr_range_test_step_rate": 5.5,
                                 "lr_range_test_staircase": staircase}, exact=True)


def random_cycles():
    cases = []
    source = random.Random(11)
    for case in range(40):
        params = {"cycle_min_lr": source.uniform(1e-6, 1e-4),
                  "cycle_max_lr": source.uniform(1e-4, 1e-2),
                  "cycle_first_step_size": source.randint(1, 700)}
        if source.random() < 0.7:
            params["cycle_second_step_size"] = source.randint(1, 700)
        if source.random() < 0.5:
            params["cycle_first_stair_count"] = source.randint(0, 9)
        if source.random() < 0.5:
            params["cycle_second_stair_count"] = source.randint(0, 9)
        if source.random() < 0.6:
            params |= {"decay_step_size": source.randint(1, 300),
                       "decay_lr_rate": source.choice([0, source.uniform(0, 2)]),
                       "decay_mom_rate": source.choice([0, 0.0005])}
        if source.random() < 0.5:
            params |= {"cycle_min_mom": 0.6, "cycle_max_mom": 0.85}
        cases.append(pytest.param(params, id=f"case{case}"))
    return cases


@pytest.mark.parametrize("params", random_cycles())
def test_one_cycle(params):
    found = our_rates("OneCycle", params, steps=2_000)
    expected = their_rates("OneCycle", params, steps=2_000)
    momenta = [betas[0] for _, betas in expected]
    cut = next((t for t, momentum in enumerate(momenta) if momentum >= 1), len(momenta))
    assert [rate[0] for rate in found] == [rate for rate, _ in expected]
    assert [rate[1] for rate in found[:cut]] == momenta[:cut]
    assert all(betas[1] == 0.99 for _, betas in expected)


def test_one_cycle_without_momentum_leaves_the_betas():
    params = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_momentum": False}
    assert all(len(rate) == 1 for rate in our_rates("OneCycle", params, steps=50))
    assert all(betas == (0.85, 0.95) for _, betas in their_rates("OneCycle", params, 50))


def their_scales(fp16, pattern):
    settings = DeepSpeedFP16Config(enabled=True, **fp16)
    scaler = CreateLossScaler(torch.half, 0, True, settings.dynamic_loss_scale_args())
    scales = []
    for step in pattern:
        try:
            scaler.update_scale(step != "+")
        except Exception as error:  # DeepSpeed raises no other class
            assert "already at minimum" in str(error)
            return [*scales, "stop"]
        scales.append(float(scaler.cur_scale))
    return scales


def test_loss_scale_over_random_overflows():
    source = random.Random(5)
    stopped = 0
    for _ in range(150):
        fp16 = {"initial_scale_power": source.randint(0, 20),
                "loss_scale_window": source.choice([1, 2, 3, 7, 20, 1000]),
                "hysteresis": source.choice([1, 2, 2, 3, 12]),
                "consecutive_hysteresis": source.random() < 0.3,
                "min_loss_scale": source.choice([1, 1, 3, 16])}
        if fp16["min_loss_scale"] > 2 ** fp16["initial_scale_power"]:
            continue
        bad = source.choice([0.02, 0.1, 0.3, 0.7])
        # Below 2^100, where ours stops growing: no fp16 gradient lives there.
        longest = min(1500, 70 * fp16["loss_scale_window"])
        pattern = "".join("x" if source.random() < bad else "+" for _ in range(longest))
        found = ours({"fp16": {"enabled": True, **fp16}}, "scale", pattern)
        found = [line if line == "stop" else float(line) for line in found]
        assert found == their_scales(fp16, pattern), (fp16, pattern)
        stopped += found[-1] == "stop"
    assert 10 < stopped < 140  # both kinds of ending were tried


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
