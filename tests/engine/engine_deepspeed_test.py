"""DeepSpeed's own engine as a peer: deepspeed.initialize with the configuration that `spillway
train` reads, on one CPU rank. The rates of 50 updates with accumulation and clipping are those of
its optimizer, value by value, and its loss scale over overflows is ours.
Usage: engine_deepspeed_test.py SPILLWAY SCHEDULE_PRINT"""

import json
import logging
import os
import pathlib
import socket
import subprocess
import sys

import numpy
import pytest

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=str(PORT), DS_ACCELERATOR="cpu")

# DeepSpeed reads the environment when it is imported.
import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.comm import torch as their_backend
from deepspeed.utils import logger

SPILLWAY, SCHEDULE_PRINT = sys.argv[-2:]
STEPS = 50
ACCUMULATION = 2
CLIP = 0.01
MODEL = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16,
         "vocab_size": 16, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
SCHEDULES = [
    ("WarmupLR", {"warmup_num_steps": 20}),
    ("WarmupLR", {"warmup_num_steps": 20, "warmup_type": "linear", "warmup_min_lr": [1e-5],
                  "warmup_max_lr": [7e-4]}),
    ("WarmupDecayLR", {"warmup_num_steps": 10, "total_num_steps": 40, "warmup_max_lr": 2e-3}),
    ("WarmupCosineLR", {"warmup_num_steps": 10, "total_num_steps": 45, "warmup_min_ratio": 0.1}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": [2e-3], "cycle_first_step_size": 12,
                  "cycle_second_step_size": 15, "decay_step_size": 5, "decay_lr_rate": 0.3,
                  "cycle_min_mom": 0.7, "cycle_max_mom": 0.8}),
    ("LRRangeTest", {"lr_range_test_min_lr": [1e-4], "lr_range_test_step_size": 7,
                     "lr_range_test_staircase": True}),
]
logger.setLevel(logging.ERROR)
# It is a C++ extension for several ranks of one machine, which would be compiled here.
their_backend.build_shm_op = lambda: None
# PyTorch computes fp16 on every CPU; DeepSpeed offers it where it is fast.
get_accelerator().is_fp16_supported = lambda: True


def configuration(kind, params):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": ACCUMULATION,
            "gradient_clipping": CLIP, "steps_per_print": 10_000,
            "optimizer": {"type": "AdamW", "params": {
                "lr": 3e-4, "betas": [0.85, 0.95], "weight_decay": 0.1, "torch_adam": True}},
            "scheduler": {"type": kind, "params": params}}


def engine_of(config):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def micro_batches(count, dtype=torch.float32):
    source = torch.Generator().manual_seed(7)
    return [torch.randn(2, 4, generator=source).to(dtype) for _ in range(count)]


def their_steps(engine):
    """What every update is done with, and what the parameters are at the end."""
    used = []
    for number, batch in enumerate(micro_batches(STEPS * ACCUMULATION), 1):
        boundary = number % ACCUMULATION == 0
        assert engine.is_gradient_accumulation_boundary() == boundary
        if boundary:
            group = engine.optimizer.param_groups[0]
            assert engine.get_lr() == [group["lr"]]
            used.append((group["lr"], tuple(group["betas"])))
        engine.backward(engine(batch).square().mean())
        engine.step()
    assert engine.global_steps == STEPS
    return used, [each.detach().clone() for each in engine.module.parameters()]


@pytest.fixture(name="train")
def fixture_train(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    tokens = numpy.random.default_rng(3).integers(0, 16, 4000, dtype=numpy.uint16)
    tokens.tofile(data / "train.bin")
    (data / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 16}))
    (tmp_path / "model.json").write_text(json.dumps(MODEL))

    def run(config):
        (tmp_path / "train.json").write_text(json.dumps(config))
        done = subprocess.run(
            [SPILLWAY, "train", tmp_path / "train.json", "--model", tmp_path / "model.json",
             "--data", data, "--run", tmp_path / "run", "--steps", str(STEPS)],
            capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        lines = (pathlib.Path(tmp_path) / "run" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return run


def plain_adamw(rates):
    """PyTorch alone, with the given rate and betas for each update."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    batches = iter(micro_batches(STEPS * ACCUMULATION))
    clipped = 0
    for rate, betas in rates:
        optimizer.zero_grad()
        for _ in range(ACCUMULATION):
            (model(next(batches)).square().mean() / ACCUMULATION).backward()
        clipped += float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)) > CLIP
        optimizer.param_groups[0].update(lr=rate, betas=betas)
        optimizer.step()
    assert clipped > STEPS // 2
    return list(model.parameters())


@pytest.mark.parametrize("kind, params", SCHEDULES)
def test_every_update_has_the_rate_of_deepspeeds_engine(train, kind, params):
    config = configuration(kind, params)
    ours = [line["lr"] for line in train(config)]
    used, parameters = their_steps(engine_of(config))
    # Their log and cos are the C library's, ours a series; each is within 4e-16.
    assert ours == pytest.approx([rate for rate, _ in used], rel=0, abs=2e-15 * max(ours))
    betas = [betas for _, betas in used]
    for found, expected in zip(parameters, plain_adamw(zip(ours, betas)), strict=True):
        # The clip factor and the sum of micro-batches are rounded elsewhere.
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


PATTERNS = ["++x++xx++++++x+++xxx+++++++++x+++++++++++++++++xx+", "x+" * 25, "+" * 50]


@pytest.mark.parametrize("fp16", [
    {"loss_scale_window": 4, "initial_scale_power": 8},
    {"loss_scale_window": 3, "initial_scale_power": 12, "hysteresis": 3},
    {"loss_scale_window": 5, "initial_scale_power": 40, "hysteresis": 1,
     "consecutive_hysteresis": True, "min_loss_scale": 2},
    {"loss_scale": 128}])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_loss_scale_of_deepspeeds_engine(pattern, fp16):
    config = configuration("WarmupLR", {"warmup_num_steps": 20})
    config |= {"gradient_accumulation_steps": 1, "fp16": {"enabled": True, **fp16},
               "zero_optimization": {"stage": 2}}  # without ZeRO it knows no hysteresis
    engine = engine_of(config)
    scales, rates, happened, skipped = [], [], "", 0
    for wanted, batch in zip(pattern, micro_batches(STEPS, torch.float16), strict=True):
        rates.append(engine.get_lr()[0])
        loss = engine(batch).float().square().mean()
        engine.backward(loss * (float("inf") if wanted == "x" else 1))
        try:
            engine.step()
        except Exception as error:  # DeepSpeed raises no other class
            assert "already at minimum" in str(error)
            happened += "x"
            scales.append("stop")
            break
        # Large scales overflow by themselves.
        happened += "x" if engine.skipped_steps > skipped else "+"
        assert wanted == "+" or happened[-1] == "x"
        skipped = engine.skipped_steps
        scales.append(float(engine.optimizer.loss_scale))

    def ours(*arguments):
        done = subprocess.run([SCHEDULE_PRINT, *arguments], input=json.dumps(config),
                              capture_output=True, encoding="utf-8", check=True)
        return [line if line == "stop" else float(line) for line in done.stdout.splitlines()]

    assert ours("scale", happened) == scales
    # A step that is skipped leaves the schedule where it is.
    applied = ours(str(STEPS))
    now = [applied[happened[:step].count("+")] for step in range(len(rates))]
    assert rates == pytest.approx(now, rel=0, abs=1e-18)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
