"""Trains tiny models with Spillway and with the reference trainer and compares every step.

usage: reference_test.py SPILLWAY [--case PART_OF_A_NAME] [--figures]

Spillway trains half of the steps, is started again for the rest, and exports its masters. Compared
are each step's loss, gradient norm, loss scale and whether it was skipped, and the masters at the
end, those of matrices and of vectors apart.

Where the bounds come from: the reference runs twice, with sums in fp64 and with sums in fp32 (in
PyTorch's order, not Spillway's), and rounds to 16 bits at the same places. The two differ as two
right implementations do: by the order of sums, and by the few 16-bit roundings that this tips, all
carried on through 20 steps of the optimizer. Spillway may be FACTOR times as far from the fp64 run
as the fp32 run is. Largest of all steps for losses and norms: near 1e-7 of the value with fp32
compute, 1e-4 with bf16. Root mean square for masters, in units of the way that they went: near 1e-6
with fp32 and AdamW, which divides small gradients by their own size, and 1e-2 with bf16. Lion takes
signs: where one tips, a master is 2 lr away, so FLIPS of them are free.

The state formats bf16 and int8 leave to each implementation what it draws, and which parameters
share a block of 256. The two runs of the reference differ in both, as Spillway does from either, so
that their distance is what the rounding of the moments is worth: with int8 and AdamW, near 2e-2 of
the way of a master.
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import types

import safetensors.torch
import torch

import cases
from model import config_json, random_weights
from state_formats import StateFormat
from trainer import Trainer

FACTOR = 6
# Where the two runs agree by luck: a few units in the last place of an fp32 number.
FLOOR = 2.0 ** -21
FLIPS = 4


def configuration(case):
    r = case.recipe
    params = {"lr": r.lr, "weight_decay": r.weight_decay}
    if r.optimizer == "SGD":
        params["momentum"] = r.momentum
    elif r.optimizer != "Adagrad":
        params["betas"] = list(r.betas)
    if r.optimizer not in ("SGD", "Lion"):
        params["eps"] = r.eps
    if r.optimizer == "Adam":
        params["adam_w_mode"] = False
    config = {
        "train_micro_batch_size_per_gpu": r.micro_batch,
        "gradient_accumulation_steps": r.micro_batches, "gradient_clipping": r.clip,
        "optimizer": {"type": r.optimizer, "params": params},
        "spillway": {"context": case.shape.context, "order": case.order, "seed": cases.SEED,
                     "rounds": r.rounds, "decay": r.decay, "state_format": case.state_format,
                     "operator_tile": case.operator_tile, "activations": case.activations}}
    if case.device_memory:
        config["spillway"] |= {"device_memory": case.device_memory, "checkpointing": "nvme"}
    if r.compute == "bf16":
        config["bf16"] = {"enabled": True}
    if r.compute == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": r.loss_scale,
                          "initial_scale_power": r.first_scale_power, "hysteresis": r.hysteresis,
                          "loss_scale_window": r.scale_window}
    return config


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def train_spillway(program, case, weights, work):
    """As a reference's record: losses, norms, scales, skipped, masters."""
    (work / "start").mkdir()
    (work / "start/config.json").write_text(json.dumps(config_json(case.shape)))
    safetensors.torch.save_file(weights, work / "start/model.safetensors")
    (work / "data").mkdir()
    cases.tokens_of(case).numpy().astype("<u2").tofile(work / "data/train.bin")
    (work / "data/meta.json").write_text(
        json.dumps({"dtype": "uint16", "vocab_size": case.shape.vocabulary}))
    (work / "train.json").write_text(json.dumps(configuration(case)))
    train = (program, "train", work / "train.json", "--data", work / "data", "--run", work / "run",
             "--device", "host", "--compute-threads", "1", "--threads", "1")
    if case.device_memory:
        machine = pathlib.Path(__file__).parents[2] / "docs/machines/h100.json"
        plan = json.loads(run(program, "plan", work / "train.json", "--from", work / "start",
                              "--device", "host", "--machine", machine, "--json"))
        assert "nvme" in [cut["saved"] for cut in plan["cuts"]], plan["cuts"]
    run(*train, "--from", work / "start", "--steps", cases.STEPS // 2)
    run(*train, "--resume", "--steps", cases.STEPS)
    run(program, "export", work / "run", work / "end", "--dtype", "fp32")
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, cases.STEPS + 1)), lines
    norms = [math.nan if line["grad_norm"] is None else line["grad_norm"] for line in lines]
    masters = safetensors.torch.load_file(work / "end/model.safetensors")
    return types.SimpleNamespace(
        losses=[line["loss"] for line in lines], norms=norms,
        scales=[line["scale"] for line in lines],
        masters={name: tensor.double() for name, tensor in masters.items()})


def rms(tensors):
    return torch.cat([t.flatten() for t in tensors]).double().square().mean().sqrt().item()


def groups_of(start):
    """Names by whether weight decay tells them apart."""
    return {"matrices": [n for n in start if start[n].dim() > 1],
            "vectors": [n for n in start if start[n].dim() == 1]}


def way_of(exact, start, names):
    return rms([exact.masters[n] - start[n] for n in names])


def floor_of(case, exact, start, name):
    names = groups_of(start).get(name)
    if names is None or case.recipe.optimizer != "Lion":
        return FLOOR
    count = sum(start[n].numel() for n in names)
    return 2 * case.recipe.lr * math.sqrt(FLIPS / count) / way_of(exact, start, names)


def differences(exact, other, start):
    """How far `other` is from `exact`, by name."""
    finite = [i for i, norm in enumerate(exact.norms) if math.isfinite(norm)]
    result = {
        "loss": max(abs(x - y) / x for x, y in zip(exact.losses, other.losses)),
        "norm": max(abs(exact.norms[i] - other.norms[i]) / exact.norms[i] for i in finite)}
    for group, names in groups_of(start).items():
        distance = rms([exact.masters[n] - other.masters[n] for n in names])
        result[group] = distance / way_of(exact, start, names)
    return result


def compare(program, case, figures):
    weights = random_weights(case.shape, torch.Generator().manual_seed(7))
    with tempfile.TemporaryDirectory() as folder:
        ours = train_spillway(program, case, weights, pathlib.Path(folder))
    exact, twin = (Trainer(case.shape, case.recipe, weights, cases.tokens_of(case),
                           cases.order_of(case), StateFormat(case.state_format, draws, phase),
                           wide).run(cases.STEPS)
                   for wide, draws, phase in ((torch.float64, 1, 0), (torch.float32, 2, 100)))
    twin.masters = {name: p.double() for name, p in twin.masters.items()}
    assert set(ours.masters) == set(weights)
    wrong = []
    if ours.scales != exact.scales:
        wrong.append(f"loss scales {ours.scales}, not {exact.scales}")
    skips = [[not math.isfinite(norm) for norm in record.norms] for record in (ours, exact)]
    if skips[0] != skips[1]:
        wrong.append(f"skipped {skips[0]}, not {skips[1]}")
    start = {name: p.double() for name, p in weights.items()}
    distance, measure = (differences(exact, record, start) for record in (ours, twin))
    for name, value in distance.items():
        bound = max(FACTOR * measure[name], floor_of(case, exact, start, name))
        if figures:
            print(f"  {name}: {value:.1e}, bound {bound:.1e}")
        if not value <= bound:
            wrong.append(f"{name} differs by {value:.2e}, more than {bound:.2e}")
    print(case.name, "ok" if not wrong else "WRONG: " + "; ".join(wrong), flush=True)
    return not wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("spillway")
    parser.add_argument("--case", default="")
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in cases.CASES if options.case in case.name]
    right = [compare(options.spillway, case, options.figures) for case in chosen]
    print(f"{sum(right)} of {len(right)} runs agree with the reference")
    assert right and all(right)


if __name__ == "__main__":
    main()
