"""Optimizers give the device's memory back between steps, and take it again: the bits are the same,
the memory is really free, and what needs the device meanwhile is refused."""
import gc

import pytest
import torch
from block_model import BlockModel

import spillway
from spillway.torch import OffloadedAdamW, offload_model


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return x + torch.tanh(self.inner(x)) * self.scale


def make(budget="600KB", freezes=False, **options):
    torch.manual_seed(1)
    model = BlockModel(Block, 6, 64)
    if freezes:  # of no block, and a part of one
        model.embedding.requires_grad_(False)
        model.blocks[2].inner.weight.requires_grad_(False)
    if budget:
        offload_model(model, budget, activation_memory="4MB")
    if options.pop("deferred", False):
        options["deferred"] = model
    return model, OffloadedAdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2,
                                 max_norm=1.0, **options)


def train(model, optimizer, steps):
    losses = []
    for step in steps:
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(step))
        loss = model(x)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize("options", [{}, {"deferred": True}, {"nvme": True}])
def test_the_bits_are_those_of_a_device_that_was_kept(tmp_path, freezes, options):
    results = []
    for releases in (False, True):
        given = dict(options)
        if given.get("nvme"):
            given["nvme"] = tmp_path
        model, optimizer = make(freezes=freezes, **given)
        losses = []
        for step in range(0, 6, 2):
            losses += train(model, optimizer, range(step, step + 2))
            if releases:
                optimizer.release_device()
                optimizer.release_device()
                values = {name: p.detach().clone() for name, p in model.named_parameters()}
                optimizer.resume_device()
                optimizer.resume_device()
                for name, p in model.named_parameters():
                    assert torch.equal(p, values[name])
                del values, p
            with torch.no_grad():  # in both
                model.head.weight.mul_(0.5)
        optimizer.synchronize()
        results.append((losses, [p.detach().clone() for p in model.parameters()]))
        optimizer.close()
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_what_is_written_meanwhile_is_trained():
    results = []
    for releases in (False, True):
        model, optimizer = make(freezes=True)
        train(model, optimizer, range(2))
        if releases:
            optimizer.release_device()
        with torch.no_grad():
            model.head.weight.mul_(0.5)             # stays on the device
            model.embedding.weight.add_(0.25)       # likewise, and is frozen
            model.blocks[1].inner.weight.mul_(0.5)  # passes through it
        if releases:
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
            optimizer.resume_device()
        results.append((train(model, optimizer, range(2, 4)),
                        [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


RELEASED = "the memory of the device is released; call resume_device first"


def test_what_needs_the_device_is_refused_meanwhile(tmp_path):
    results = []
    for releases in (False, True):
        model, optimizer = make()
        train(model, optimizer, range(2))
        optimizer.save(tmp_path / f"before {releases}")
        if releases:
            optimizer.release_device()
            with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
                model(torch.ones(3, 4))
            with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
                model.head(torch.ones(3, 64)).sum().backward()
            with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
                optimizer.load(tmp_path / "before True")
            optimizer.zero_grad()
            optimizer.save(tmp_path / "meanwhile")
            optimizer.resume_device()
        train(model, optimizer, range(2, 4))
        if releases:
            optimizer.load(tmp_path / "meanwhile")
            train(model, optimizer, range(2, 4))
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_gradients_of_a_step_come_first():
    model, optimizer = make(missing="zero")
    model(torch.ones(3, 4)).backward()
    with pytest.raises(spillway.InvalidArgumentError, match="between a backward pass and its step"):
        optimizer.release_device()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.release_device()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    optimizer.resume_device()
    train(model, optimizer, range(2))


@pytest.mark.parametrize("keep", [
    lambda model: model.head.weight[0].detach(),
    lambda model: model.state_dict(),
    lambda model: model.embedding.bias.data,
    lambda model: model.head(torch.ones(3, 64, requires_grad=True)),  # its graph has head.weight
])
def test_tensors_in_memory_that_moves_are_refused(keep):
    model, optimizer = make(freezes=True)
    train(model, optimizer, range(2))
    for call in (optimizer.release_device, optimizer.resume_device):
        kept = keep(model)
        with pytest.raises(spillway.InvalidArgumentError, match="uses the memory of.*clone"):
            call()
        del kept
        call()
        kept = keep(model)
        call()  # nothing moves
        del kept
    train(model, optimizer, range(2))


def test_parameters_of_the_host_stay_where_they_are():
    model, optimizer = make(budget=None)
    view, place = model.head.weight[0].detach(), model.head.weight.data_ptr()
    optimizer.release_device()
    with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
        model(torch.ones(3, 4)).backward()
    optimizer.zero_grad()
    optimizer.resume_device()
    train(model, optimizer, range(2))
    assert model.head.weight.data_ptr() == place
    assert torch.equal(model.head.weight[0], view)


def test_a_pass_that_an_error_has_cut_off_is_left():
    model, optimizer = make()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model.blocks[1](torch.ones(3, 5))
    optimizer.release_device()
    optimizer.resume_device()
    train(model, optimizer, range(2))


def resident_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_the_memory_is_free_meanwhile():
    torch.manual_seed(1)
    model = BlockModel(Block, 4, 1024)  # 4 MiB a block
    offload_model(model, "32MB")
    optimizer = OffloadedAdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, range(2))
    gc.collect()
    before = resident_bytes()
    optimizer.release_device()
    assert resident_bytes() < before - 10e6  # three slots were used
    optimizer.resume_device()
    train(model, optimizer, range(2, 4))


def test_an_optimizer_that_ends_meanwhile_leaves_the_values():
    model, optimizer = make(freezes=True)
    train(model, optimizer, range(2))
    values = [p.detach().clone() for p in model.parameters()]
    optimizer.release_device()
    optimizer.close()
    with pytest.raises(spillway.InvalidArgumentError, match="has ended"):
        optimizer.resume_device()
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))


def test_the_engine_releases_the_device_of_its_optimizer():
    model = offload_model(BlockModel(Block, 6, 64), "600KB")
    engine, *_ = spillway.torch.initialize(model=model, config={
        "train_batch_size": 40, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
    engine.release_device()
    with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
        engine(torch.ones(40, 4))
    engine.resume_device()
    engine.backward(engine(torch.ones(40, 4)))
    engine.step()


def test_a_checkpoint_that_is_loaded_meanwhile_changes_nothing(tmp_path):
    model = offload_model(BlockModel(Block, 6, 64), "600KB")
    engine, *_ = spillway.torch.initialize(model=model, config={
        "train_batch_size": 40, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
    engine.save_checkpoint(tmp_path)
    engine.backward(engine(torch.ones(40, 4)))
    engine.step()
    engine.release_device()
    values = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(spillway.InvalidArgumentError, match=RELEASED):
        engine.load_checkpoint(tmp_path)
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))
    assert engine.global_steps == 1
    engine.resume_device()
    engine.backward(engine(torch.ones(40, 4)))
    engine.step()
    engine.load_checkpoint(tmp_path)
    assert engine.global_steps == 0
    assert not torch.equal(model.head.weight, values[-2])


def test_ranks_keep_the_device(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}",
                                         rank=0, world_size=1)
    try:
        _, optimizer = make(budget=None, process_group=torch.distributed.group.WORLD)
        for call in (optimizer.release_device, optimizer.resume_device):
            with pytest.raises(spillway.NotSupportedError, match="process_group.*one process"):
                call()
        optimizer.close()
    finally:
        torch.distributed.destroy_process_group()
