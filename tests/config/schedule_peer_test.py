"""Schedules against those of transformers: update t has the rate that their scheduler reaches after
t steps. Usage: schedule_peer_test.py SCHEDULE_PRINT"""

import json
import subprocess
import sys

import pytest
import torch
import transformers

SCHEDULE_PRINT = sys.argv[-1]
LR = 3e-4
STEPS = 200


def ours(scheduler):
    config = {"optimizer": {"type": "AdamW", "params": {"lr": LR}}, "scheduler": scheduler}
    done = subprocess.run([SCHEDULE_PRINT, str(STEPS)], input=json.dumps(config),
                          capture_output=True, encoding="utf-8", check=True)
    return [float(line) for line in done.stdout.split()]


def theirs(make, **arguments):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer, **arguments)
    rates = []
    for _ in range(STEPS):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 20])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "cosine_min", "wsd"])
def test_equals_transformers(name, warmup):
    params = {"warmup_num_steps": warmup}
    if name == "constant":
        scheduler = {"type": "Constant", "params": params}
        peer = theirs(transformers.get_constant_schedule_with_warmup, num_warmup_steps=warmup)
    elif name == "linear":
        scheduler = {"type": "Linear", "params": params}
        peer = theirs(transformers.get_linear_schedule_with_warmup, num_warmup_steps=warmup,
                      num_training_steps=STEPS)
    elif name == "cosine":
        scheduler = {"type": "Cosine", "params": params}
        peer = theirs(transformers.get_cosine_schedule_with_warmup, num_warmup_steps=warmup,
                      num_training_steps=STEPS)
    elif name == "cosine_min":
        scheduler = {"type": "Cosine", "params": {**params, "min_ratio": 0.1}}
        peer = theirs(transformers.optimization.get_cosine_with_min_lr_schedule_with_warmup,
                      num_warmup_steps=warmup, num_training_steps=STEPS, min_lr_rate=0.1)
    else:
        # Theirs warms up from the minimum, too.
        scheduler = {"type": "WSD", "params": {**params, "decay_num_steps": 50, "min_ratio": 0.2,
                                               "warmup_min_lr": 0.2 * LR}}
        peer = theirs(transformers.get_wsd_schedule, num_warmup_steps=warmup, num_decay_steps=50,
                      num_training_steps=STEPS, decay_type="linear", min_lr_ratio=0.2)
    # Both sum a handful of fp64 roundings; 1e-14 of the peak is 50 of them.
    assert ours(scheduler) == pytest.approx(peer, rel=0, abs=1e-14 * LR)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
