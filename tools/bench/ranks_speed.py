"""Training speed of two ranks of one thread without a GPU: Spillway over MPI against one process of
two threads, and against PyTorch's DDP and FSDP2 over gloo on the same two processes.

usage: ranks_speed.py SPILLWAY [--dtype fp32|bf16] [--steps N] [--repetitions N] [--layers N]

The model and the total batch are those of train_speed.py. Runs alternate, each in processes of its
own. Prints one JSON line; tokens/s are medians over repetitions of the median step of a run.
"""
import json
import os
import statistics
import sys

from train_speed import (BATCH, CONTEXT, last_json, parse, prepare, spillway_run,
                         torch_model, torch_step_seconds)

RANKS = 2
STAGES = (0, 1, 2, 3)
TORCH_KINDS = ("ddp", "fsdp2")


def torch_rank(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch_model(options)
    if options.torch == "ddp":
        forward = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        forward = fully_shard(model, mesh=mesh)
    seconds = torch_step_seconds(options, forward, model, BATCH // RANKS)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    dist.barrier()
    # DDP's end may wait for a thread of gloo that waits for the interpreter (torch 2.13).
    os._exit(0)


def torch_seconds(options, kind):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", RANKS, __file__, options.spillway, "--dtype", options.dtype,
               "--steps", options.steps, "--layers", options.layers, "--torch", kind]
    return last_json(command)["seconds"]


def main():
    options = parse(TORCH_KINDS)
    if options.torch:
        torch_rank(options)
        return
    work = prepare(options)
    seconds = {}
    for _ in range(options.repetitions):
        seconds.setdefault("one_process", []).append(spillway_run(options, work))
        for stage in STAGES:
            seconds.setdefault(f"stage_{stage}", []).append(
                spillway_run(options, work, ranks=RANKS, stage=stage))
        for kind in TORCH_KINDS:
            seconds.setdefault(kind, []).append(torch_seconds(options, kind))
    speed = {name: BATCH * CONTEXT / statistics.median(values) for name, values in seconds.items()}
    slowest = min(speed[f"stage_{stage}"] for stage in STAGES)
    print(json.dumps({
        "dtype": options.dtype, "ranks": RANKS, "tokens_per_second": speed,
        "ratio_to_one_process": slowest / speed["one_process"],
        "ratio_to_ddp": speed["stage_0"] / speed["ddp"],
        "ratio_to_fsdp2": speed["stage_3"] / speed["fsdp2"]}))


if __name__ == "__main__":
    main()
