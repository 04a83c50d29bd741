"""Checkpoints of DeepSpeed for tests: DeepSpeed writes them on ranks of its own, or a test by hand.

    python -m torch.distributed.run --nproc-per-node RANKS deepspeed_files.py WRITER FOLDER
"""
import collections
import contextlib
import sys

import torch

import spillway
import spillway.torch

CONFIG = {"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}}}
ADAMW = {"exp_avg": 1.0, "exp_avg_sq": 2.0}
#: Ranks of DeepSpeed, its stage, and the precision.
WRITERS = {"alone": (1, 1, {}), "ranks": (2, 2, {"bf16": {"enabled": True}}),
           "cut, alone": (1, 3, {"bf16": {"enabled": True}}), "cut": (2, 3, {}),
           "tied": (2, 3, {"bf16": {"enabled": True}})}


class Tied(torch.nn.Module):
    """Has frozen and tied parameters, and buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen = torch.nn.Linear(8, 33), torch.nn.Linear(33, 33)
        self.last, self.tied = (torch.nn.Linear(33, 3, bias=False) for _ in range(2))
        self.tied.weight = self.last.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        hidden = hidden + self.frozen(hidden)
        return self.last(hidden) * self.scale + self.tied(hidden)


def network(name="alone"):
    torch.manual_seed(0)
    return Tied() if name == "tied" else torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def groups_of(model):
    """Weights decay, and vectors do not."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return [{"params": [each for each in trained if each.dim() > 1]},
            {"params": [each for each in trained if each.dim() == 1], "weight_decay": 0.0}]


def train(engine, numbers):
    losses = []
    for number in numbers:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        loss = engine(x.to(next(engine.module.parameters()).dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def write(name, folder):
    """Trains with DeepSpeed on ranks of torchrun: four steps, a checkpoint, and four steps."""
    import deepspeed

    ranks, stage, precision = WRITERS[name]
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    model = network(name)
    config = {**CONFIG, **precision, "zero_optimization": {"stage": stage}}
    if name == "tied":  # the first weight and the last are flat tensors of their own
        config["zero_optimization"]["sub_group_size"] = 40
    config["optimizer"]["params"]["torch_adam"] = True
    engine, *_ = deepspeed.initialize(
        model=model, config=config,
        model_parameters=groups_of(model) if name == "tied" else model.parameters())
    train(engine, range(rank, 4 * ranks, ranks))
    engine.save_checkpoint(folder, client_state={"epoch": 3})
    losses = train(engine, range(4 * ranks + rank, 8 * ranks, ranks))
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        values = [each.detach().clone() for each in model.parameters()]
    torch.save((losses, values, engine.get_lr()), f"{folder}/after{rank}.pt")
    torch.distributed.destroy_process_group()


def make(name):
    model = network(name)
    return spillway.torch.initialize(
        model=model, model_parameters=groups_of(model) if name == "tied" else None, config={
            **CONFIG, **WRITERS[name][2], "gradient_accumulation_steps": WRITERS[name][0]})[0]


def as_deepspeed_reads(folder):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(folder))


# Files of DeepSpeed's layout that the test writes itself.

def by_hand(folder, model, moments=ADAMW, *, ranks=1, updates=4, step=4, schedule=None,
            dtype=torch.float32):
    """Writes a checkpoint of ZeRO 1 with moments of these values; returns the flat masters."""
    inside = folder / "global_step4"
    inside.mkdir(parents=True, exist_ok=True)
    (folder / "latest").write_text(inside.name)
    shapes = collections.OrderedDict((n, p.shape) for n, p in model.named_parameters())
    values = {name: value.to(dtype) for name, value in model.state_dict().items()}
    torch.save({"module": values, "param_shapes": [shapes], "lr_scheduler": schedule,
                "global_steps": updates, "skipped_steps": 0, "global_samples": 4 * updates,
                "dp_world_size": ranks, "mp_world_size": 1, "epoch": torch.arange(3)},
               inside / "mp_rank_00_model_states.pt")
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    for rank, part in enumerate(flat.tensor_split(ranks)):
        state = {key: part * factor for key, factor in moments.items()}
        if rank == ranks - 1:  # as DeepSpeed pads moments, and masters not
            state = {key: torch.nn.functional.pad(each, (0, 1)) for key, each in state.items()}
        if step is not None:
            state["step"] = step
        torch.save({"optimizer_state_dict": {
            "single_partition_of_fp32_groups": [part.clone()],
            "base_optimizer_state": {"state": {0: state} if state else {},
                                     "param_groups": [{"lr": 0.5}]}}},
            inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return flat


@contextlib.contextmanager
def changed(path):
    """Gives what a file has, which is written back."""
    saved = torch.load(path, weights_only=False)
    yield saved
    torch.save(saved, path)


def engine_of(optimizer=None, model=None, **more):
    return spillway.torch.initialize(
        model=network() if model is None else model,
        optimizer=optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2)),
        **{"config": {"train_micro_batch_size_per_gpu": 4}, **more})[0]


def other_network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def is_untouched(engine):
    return engine.global_steps == 0 and not engine.optimizer.has_state() and all(
        torch.equal(a, b) for a, b in zip(engine.module.parameters(), network().parameters(),
                                          strict=True))


def cut_by_hand(folder, model, ranks):
    """Writes a checkpoint of ZeRO 3: each rank has a part of each parameter, as DeepSpeed's own
    files in `written` are compared with."""
    inside = folder / "global_step4"
    inside.mkdir(parents=True, exist_ok=True)
    (folder / "latest").write_text(inside.name)
    parameters = dict(model.named_parameters())
    shapes = collections.OrderedDict((n, p.shape) for n, p in parameters.items() if p.requires_grad)
    frozen = collections.OrderedDict((n, p.shape) for n, p in parameters.items()
                                     if not p.requires_grad)
    parts = {name: torch.nn.functional.pad(p.detach().flatten(), (0, -p.numel() % ranks)).chunk(
        ranks) for name, p in parameters.items()}
    for rank in range(ranks):
        torch.save({"module": {name: torch.empty(0) for name in model.state_dict()},
                    "param_shapes": [shapes], "frozen_param_shapes": frozen, "shared_params": {},
                    "frozen_param_fragments": {name: parts[name][rank].clone() for name in frozen},
                    "lr_scheduler": None, "global_steps": 4, "skipped_steps": 0,
                    "global_samples": 16, "dp_world_size": ranks, "mp_world_size": 1},
                   inside / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flat = torch.cat([parts[name][rank] for name in shapes])
        torch.save({"optimizer_state_dict": {
            "partition_count": ranks, "fp32_flat_groups": [flat],
            "optimizer_state_dict": {
                "state": {0: {key: flat * factor for key, factor in ADAMW.items()} | {"step": 4}},
                "param_groups": [{"lr": 0.5, "params": [0]}]}}},
            inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return inside


def anonymous_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
