"""Loops as scripts for DeepSpeed write them, with the import changed and nothing else, beside loops
of torch alone."""
import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch.nn.functional import cross_entropy

import spillway
import spillway.torch as deepspeed
from spillway.torch.accelerator import get_accelerator

SECTIONS = {"train_micro_batch_size_per_gpu": 4}


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return (torch.randn(4, 8, generator=generator),
            torch.randint(3, (4,), generator=generator))


def loss_of(model, number):
    inputs, labels = batch(number)
    return cross_entropy(model(inputs), labels)


def is_close(model, other):
    # Roundings of fp32 in another order, through a few updates.
    return all(torch.allclose(a, b, atol=2e-6)
               for a, b in zip(model.parameters(), other.parameters(), strict=True))


def train(engine, numbers):
    for number in numbers:
        engine.backward(loss_of(engine, number))
        engine.step()


def train_plainly(model, optimizer, numbers, passes=1, schedule=None, clip=math.inf):
    norms = []
    for count, number in enumerate(numbers, 1):
        (loss_of(model, number) / passes).backward()
        if count % passes == 0:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
    return norms


# A masked language model's loop: the model returns its loss, and checkpoints tell the step.

class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs, labels):
        return cross_entropy(self.network(inputs).float(), labels)


def language_loop(folder, load=None, until=8):
    device = torch.device(get_accelerator().device_name(0))
    model, _, _, _ = deepspeed.initialize(
        model=(whole := WithLoss()), model_parameters=whole.parameters(), config={
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
            "fp16": {"enabled": True, "initial_scale_power": 8},
            "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})
    start = 0
    if load is not None:
        _, client_state = model.load_checkpoint(load_dir=load)
        start = client_state["checkpoint_step"] + 1
    model.train()
    losses = []
    for step in range(start, until):
        inputs, labels = batch(step % 2)
        named = {"inputs": inputs.half(), "labels": labels}
        for key, value in named.items():
            named[key] = value.to(device)
        loss = model(**named)
        model.backward(loss)
        model.step()
        losses.append(loss.item())
        if step == 3:
            model.save_checkpoint(save_dir=folder, client_state={"checkpoint_step": step})
    return losses


def test_the_loop_of_a_language_model_trains_and_goes_on(tmp_path):
    losses = language_loop(tmp_path)
    assert losses[6] < losses[0] and losses[7] < losses[1]
    assert language_loop(tmp_path, load=tmp_path) == losses[4:]


# A classifier's script: arguments, a group of processes, data that initialize loads.

def classify():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    args = deepspeed.add_config_arguments(parser).parse_args([])
    deepspeed.init_distributed()
    get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
    data = [(x, y) for number in range(12) for x, y in zip(*batch(number), strict=True)]
    net = network()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=data, config={
            "train_batch_size": 4, "steps_per_print": 2000,
            "optimizer": {"type": "Adam", "params": {
                "lr": 1e-2, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
            "scheduler": {"type": "WarmupLR", "params": {
                "warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 10}},
            "gradient_clipping": 1.0, "prescale_gradients": False,
            "bf16": {"enabled": False}, "fp16": {"enabled": False, "loss_scale": 0},
            "wall_clock_breakdown": False,
            "zero_optimization": {"stage": 1, "allgather_partitions": True,
                                  "reduce_scatter": True, "overlap_comm": True,
                                  "contiguous_gradients": True, "cpu_offload": False}})
    device = get_accelerator().device_name(engine.local_rank)
    dtype = None
    if engine.bfloat16_enabled():
        dtype = torch.bfloat16
    elif engine.fp16_enabled():
        dtype = torch.half
    losses = []
    torch.manual_seed(5)  # the order of the data
    for _ in range(2):
        for batched in loader:
            inputs, labels = batched[0].to(device), batched[1].to(device)
            loss = cross_entropy(engine(inputs if dtype is None else inputs.to(dtype)), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    engine.eval()
    with torch.no_grad():
        right = sum(int(engine(x[None]).argmax()) == int(y) for x, y in data)
    print(json.dumps({"losses": losses, "right": right, "samples": engine.global_samples,
                      "rank": deepspeed.comm.get_rank(), "ranks": deepspeed.comm.get_world_size()}))
    torch.distributed.destroy_process_group()


def classify_plainly():
    data = [(x, y) for number in range(12) for x, y in zip(*batch(number), strict=True)]
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.999), weight_decay=3e-7)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    losses, updates = [], 0
    torch.manual_seed(5)
    for _ in range(2):
        for inputs, labels in loader:
            # WarmupLR's rate grows with the logarithm of the updates, and two of them have 0.
            optimizer.param_groups[0]["lr"] = 1e-2 * min(
                1.0, math.log(max(updates, 1)) / math.log(10))
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            updates += 1
    return losses, sum(int(model(x[None]).argmax()) == int(y) for x, y in data)


def test_a_classifiers_script_has_the_losses_of_torch():
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, __file__], check=False, capture_output=True,
                          encoding="utf-8", env={**os.environ, **launched})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    losses, right = classify_plainly()
    assert said["losses"] == pytest.approx(losses, rel=1e-4)
    assert (said["right"], said["samples"]) == (right, 96)
    assert (said["rank"], said["ranks"]) == (0, 1)


# The program's own optimizer and schedule, of torch.

OPTIMIZERS = [lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
              lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.9)),
              lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9),
              lambda p: torch.optim.Adagrad(p, lr=1e-1)]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("called", [True, False])
def test_an_optimizer_of_torch_is_offloaded_with_its_schedule(make, called, tmp_path):
    model, plain = network(), network()
    own = make(model.parameters())
    reference = make(plain.parameters())

    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine, optimizer, _, scheduler = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), optimizer=make if called else own,
            lr_scheduler=schedule if called else schedule(own),
            config={**SECTIONS, "gradient_clipping": 0.3})
        train(engine, range(6))
    train_plainly(plain, reference, range(6), schedule=schedule(reference), clip=0.3)
    assert is_close(model, plain) and not is_close(model, network())
    assert engine.get_lr() == [group["lr"] for group in reference.param_groups]
    assert isinstance(optimizer, deepspeed.OffloadedOptimizer) and engine.optimizer is optimizer
    assert scheduler is engine.lr_scheduler
    engine.save_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path)
    if not called:
        assert own.param_groups is optimizer.param_groups, "the program's handle on rates"
        with pytest.raises(spillway.InvalidArgumentError, match=r"call engine\.step\(\)"):
            own.step()


def test_an_optimizer_of_torch_brings_its_state():
    model, plain = network(), network()
    own, reference = (torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, plain))
    train_plainly(model, own, range(3))
    engine = deepspeed.initialize(model=model, optimizer=own, config=SECTIONS)[0]
    train(engine, range(3, 6))
    train_plainly(plain, reference, range(6))
    assert is_close(model, plain)


def test_an_optimizer_of_torch_saves_and_loads_the_state_that_trains():
    def begin():
        own = torch.optim.AdamW((model := network()).parameters(), lr=1e-1)
        return model, own, torch.optim.lr_scheduler.LambdaLR(own, lambda count: 1 / (count + 1))

    def engine_of(model, own, schedule):
        return deepspeed.initialize(model=model, optimizer=own, lr_scheduler=schedule,
                                    config=SECTIONS)[0]

    saving = engine_of(*(first := begin()))
    train(saving, range(3))
    plain, reference, following = begin()
    engine = engine_of(*(second := begin()))
    for mine, its, other in zip(first, (plain, reference, following), second, strict=True):
        its.load_state_dict(mine.state_dict())
        other.load_state_dict(mine.state_dict())
    assert len(reference.state) == 4
    model, own, schedule = second
    train(engine, range(3, 6))
    train_plainly(plain, reference, range(3, 6), schedule=following)
    assert engine.get_lr() == schedule.get_last_lr() == following.get_last_lr()
    assert own.param_groups is engine.optimizer.param_groups
    assert is_close(model, plain)
    ended = weakref.ref(engine.optimizer)
    del engine
    assert ended() is None, "the program's optimizer keeps no memory of the other one's"
    with pytest.raises(spillway.InvalidArgumentError, match=r"state_dict\(\).*which is no more"):
        own.state_dict()


def test_what_an_optimizer_of_torch_has_and_ours_has_not_is_refused():
    class Mine(torch.optim.AdamW):
        pass

    for kind, options, words in (
            (torch.optim.AdamW, {"amsgrad": True}, "amsgrad=True"),
            (torch.optim.SGD, {"nesterov": True, "momentum": 0.9}, "nesterov=True"),
            (Mine, {}, "optimizer is a Mine.*or SGD of torch.optim"),
            (torch.optim.RMSprop, {}, "optimizer is a RMSprop")):
        model = network()
        with pytest.raises(spillway.Error, match=words):
            deepspeed.initialize(model=model, config=SECTIONS,
                                 optimizer=kind(model.parameters(), lr=1e-2, **options))


# Micro-batches.

def test_norms_are_those_of_torchs_clip():
    model, plain = network(), network()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = deepspeed.initialize(model=model, optimizer=own, config={
        **SECTIONS, "gradient_accumulation_steps": 2, "gradient_clipping": 0.2})[0]
    norms = []
    for number in range(6):
        train(engine, [number])
        if engine.was_step_applied():
            norms.append(engine.get_global_grad_norm())
    expected = train_plainly(plain, torch.optim.SGD(plain.parameters(), lr=0.1), range(6), passes=2,
                             clip=0.2)
    assert norms == pytest.approx(expected, rel=1e-5)
    assert is_close(model, plain)


@pytest.mark.parametrize("way", ["boundary", "no_sync", "batch size"])
def test_a_program_counts_micro_batches_itself(way):
    """Two passes, then four: each loss is divided by the passes of its step."""
    model, plain = network(), network()
    passes = 1 if way == "no_sync" else 2
    engine = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        config={**SECTIONS, "gradient_accumulation_steps": passes})[0]
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    if way == "batch size":
        train(engine, range(2))
        engine.set_train_batch_size(16)
        train(engine, range(2, 6))
        assert engine.gradient_accumulation_steps() == 4
        with pytest.raises(spillway.InvalidArgumentError, match="18, which is no multiple of 4"):
            engine.set_train_batch_size(18)
        train(other := deepspeed.initialize(model=network(), config=SECTIONS | {
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})[0], range(1))
        with pytest.raises(spillway.InvalidArgumentError, match="within a step"):
            other.set_train_batch_size(16)
    else:
        for first, last in ((0, 1), (2, 5)):
            engine.set_gradient_accumulation_boundary(False)
            with engine.no_sync() if way == "no_sync" else contextlib.nullcontext():
                for number in range(first, last):
                    assert not engine.is_gradient_accumulation_boundary()
                    engine.backward(loss_of(engine, number) / (last - first + 1),
                                    scale_wrt_gas=False)
            engine.set_gradient_accumulation_boundary(True)
            engine.backward(loss_of(engine, last) / (last - first + 1), scale_wrt_gas=False)
            engine.step()
    train_plainly(plain, reference, range(2), passes=2)
    train_plainly(plain, reference, range(2, 6), passes=4)
    assert is_close(model, plain)
    assert engine.global_steps == 2


def test_a_step_within_no_sync_is_refused():
    engine = deepspeed.initialize(model=network(), config=SECTIONS | {
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})[0]
    with engine.no_sync():
        engine.backward(loss_of(engine, 0), retain_graph=True)
        with pytest.raises(spillway.InvalidArgumentError, match="within no_sync"):
            engine.step()
        with pytest.raises(spillway.InvalidArgumentError, match="enter it once"), engine.no_sync():
            pass
    engine.step()
    assert engine.global_steps == 1


# The model for others.

def test_a_16bit_model_has_the_bits_of_the_engines(tmp_path):
    model = network()
    engine = deepspeed.initialize(model=model, config=SECTIONS | {
        "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})[0]
    for number in range(3):
        inputs, labels = batch(number)
        engine.backward(cross_entropy(engine(inputs.bfloat16()).float(), labels))
        engine.step()
    assert engine.save_16bit_model(tmp_path / "new")
    path = tmp_path / "new/pytorch_model.bin"
    plain = network(seed=1).bfloat16()
    plain.load_state_dict(torch.load(path, weights_only=True))
    assert all(torch.equal(a, b)
               for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert path.stat().st_size < 8000, "387 parameters of 2 bytes, and names"
    assert engine.save_fp16_model(tmp_path, "other.bin")
    other = network(seed=2)
    engine.load_module_state_dict({"module": other.state_dict()})
    other.bfloat16()
    assert all(torch.equal(a, b)
               for a, b in zip(other.parameters(), model.parameters(), strict=True))
    with pytest.raises(spillway.InvalidArgumentError, match="and no module"):
        engine.load_module_state_dict(other.state_dict())
    (tmp_path / "file").write_text("")
    with pytest.raises(spillway.IoError, match="cannot be written"):
        engine.save_16bit_model(tmp_path / "file")


def test_a_compiled_engine_trains_as_before():
    model, plain = network(), network()
    engine = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=SECTIONS)[0]
    engine.compile(backend="eager")
    assert engine.is_compiled
    train(engine, range(3))
    train_plainly(plain, torch.optim.SGD(plain.parameters(), lr=0.1), range(3))
    assert is_close(model, plain)
    with pytest.raises(spillway.NotSupportedError, match="schedule"):
        engine.compile(schedule=[1])


if __name__ == "__main__":
    classify()
