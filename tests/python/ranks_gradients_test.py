"""Gradients of ranks are tensors of the program's: means over ranks, with the norms, factors and
values of one process with torch's optimizer that is given the batches of all ranks."""
import copy
import re

import pytest
import torch
import torch.distributed as dist
from handles_test import BOUNDS, READS, STEPS, USES, changed_by, loss_of
from rank_processes import ranks_at
from ranks_test import BF16, FP32, bits, equal, give, give_gradients, parameters, raised

from spillway.torch import OffloadedAdamW, OffloadedSGD, initialize


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with ranks_at(tmp_path_factory.mktemp("ranks") / "store") as on_ranks:
        yield on_ranks


class Batches(torch.nn.Sequential):
    """Computes with the batches of some ranks, each of which has another share of the same."""

    ranks = (0,)

    def forward(self, x):
        return super().forward(torch.cat([x + 0.25 * rank for rank in self.ranks]))


def network(ranks, dtype=torch.float32):
    torch.manual_seed(0)
    net = Batches(*(torch.nn.Linear(8, 8) for _ in range(3))).to(dtype)
    net.ranks = ranks
    return net


def dropped_by(drop):
    def use(net, optimizer, number):
        optimizer.zero_grad()
        loss_of(net, 10 * number).backward()
        drop(net)
        loss_of(net, number).backward()
        optimizer.step()
    return use


def without(net):
    for parameter in net.parameters():
        parameter.grad = None


def read_between(net, optimizer, number):
    """A gradient that was read with its memory, and to which that of each rank is added."""
    optimizer.zero_grad()
    for part in range(2):
        loss_of(net, 10 * number + part).backward()
        net[0].weight.grad.view(-1)
    optimizer.step()


USES_OF_RANKS = {
    **{name: use for name, use in USES.items() if name != "some dropped"},
    "dropped by a module": dropped_by(lambda net: net.zero_grad()),
    "dropped in place": dropped_by(lambda net: net.zero_grad(set_to_none=False)),
    "dropped": dropped_by(without),
    "read between passes": read_between,
    "clip and read": changed_by(lambda net: [
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05), net[0].weight.grad.sum()])}


def use_on_a_rank(group, rank, stage, steps, dtype):
    values = {}
    for name, use in USES_OF_RANKS.items():
        net = network((rank,), dtype)
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=steps, stage=stage,
                                 missing="zero", process_group=group)
        for number in range(STEPS[dtype]):
            use(net, optimizer, number)
        values[name] = bits(net.parameters())
    return values


@pytest.mark.parametrize("ranks, stage, steps, dtype", [
    (2, 2, 1, torch.float32), (2, 2, None, torch.float32), (2, 2, 2, torch.float32),
    (2, 1, 1, torch.float32), (2, 1, None, torch.float32), (2, 1, 2, torch.float32),
    (2, 2, None, torch.bfloat16), (3, 2, 1, torch.float32)])
def test_what_a_loop_does_to_gradients_is_done_to_their_mean(run, ranks, stage, steps, dtype):
    some, *others = run(ranks, use_on_a_rank, stage, steps, dtype)
    bound = BOUNDS[dtype]
    for name, use in USES_OF_RANKS.items():
        net = network(range(ranks), dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(STEPS[dtype]):
            use(net, optimizer, number)
        assert all(equal(some[name], other[name]) for other in others), name
        for mine, theirs in zip(some[name], net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=bound, atol=bound / 5,
                                       msg=lambda text, name=name: f"{name}: {text}")


def read_on_a_rank(group, rank, stage, steps):
    found = {}
    for name, read in READS.items():
        net = network((rank,))
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group, stage=stage,
                                 accumulation_steps=steps)
        found[name] = []
        for number in range(2):
            loss_of(net, number).backward()
            found[name].append([read(net).clone(), read(net).clone()])
        optimizer.step()
    return found


@pytest.mark.parametrize("ranks, stage, steps", [(2, 2, 1), (2, 2, None), (2, 1, None), (3, 2, 1)])
def test_what_is_read_of_a_gradient_is_the_mean(run, ranks, stage, steps):
    for found in run(ranks, read_on_a_rank, stage, steps):
        for name, read in READS.items():
            net = network(range(ranks))
            for number, after_a_pass in enumerate(found[name]):
                loss_of(net, number).backward()
                for mine in after_a_pass:
                    torch.testing.assert_close(mine, read(net), rtol=2e-6, atol=1e-7)


def clip_in_turn(group, rank, stage, dtypes):
    """Norms and parameters after steps that torch clips, that a call clips, and that `max_norm`
    clips; parameters are cut over ranks."""
    results = []
    for way in ("torch", "call", "option"):
        tensors = parameters(dtypes)
        optimizer = OffloadedSGD(tensors, lr=0.1, process_group=group, stage=stage,
                                 max_norm=0.5 if way == "option" else 0.0)
        norms = []
        for step in range(3):
            give_gradients(tensors, step, rank, backwards=rank % 2 == 1)
            if way == "torch":
                norms.append(float(torch.nn.utils.clip_grad_norm_(tensors, 0.5)))
                if rank == 0:  # what was measured is known to each rank
                    total = torch.nn.utils.get_total_norm([tensor.grad for tensor in tensors])
                    assert float(total) == pytest.approx(min(norms[-1], 0.5), rel=1e-5)
            elif way == "call":
                norms.append(float(optimizer.clip_grad_norm_(0.5)))
            optimizer.step()
            optimizer.zero_grad()
            if way == "option":
                norms.append(optimizer.grad_norm)
        results.append((bits(tensors), norms))
    return results


@pytest.mark.parametrize("ranks, stage, dtypes", [
    (2, 2, (FP32,)), (2, 1, (FP32,)), (3, 2, (FP32,)), (2, 2, (BF16, FP32)),
    (2, 1, (BF16, FP32))])
def test_a_clip_of_torch_is_that_of_the_optimizer(run, ranks, stage, dtypes):
    first, *others = run(ranks, clip_in_turn, stage, dtypes)
    (values, norms), (by_call, of_call), (by_option, of_option) = first
    assert equal(by_call, by_option) and of_call == pytest.approx(of_option, rel=1e-7)
    assert norms == pytest.approx(of_call, rel=1e-6)  # of fp32
    assert max(norms) > 0.5
    for mine, theirs in zip(values, by_call, strict=True):
        # Of bfloat16, which a factor of fp32 may round to the next value.
        torch.testing.assert_close(mine, theirs, rtol=1e-6 if mine.dtype == FP32 else 2**-7,
                                   atol=1e-7)
    for other in others:
        assert all(equal(mine, theirs) and some == same for (mine, some), (theirs, same) in
                   zip(other, first, strict=True))


def read_after_a_clip(group, rank):
    tensors = parameters()
    optimizer = OffloadedSGD(tensors, lr=0.1, process_group=group)
    give_gradients(tensors, 0, rank)
    optimizer.clip_grad_norm_(0.05)
    norm = torch.nn.utils.get_total_norm([tensor.grad for tensor in tensors])
    optimizer.step()
    return float(norm), bits(tensors)


def test_a_clip_of_the_optimizer_is_in_what_is_read_after_it(run):
    tensors = parameters()
    for rank in range(2):
        give_gradients(tensors, 0, rank)
    for tensor in tensors:
        tensor.grad.div_(2)
    torch.nn.utils.clip_grad_norm_(tensors, 0.05)
    torch.optim.SGD(tensors, lr=0.1).step()
    for norm, values in run(2, read_after_a_clip):
        assert norm == pytest.approx(0.05, rel=1e-4)  # of 1e-6 in the divisor
        for mine, theirs in zip(values, tensors, strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-7)


def scale_the_loss(group, rank):
    """A scale of GradScaler that overflows on one rank."""
    net = network((rank,))
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(3):
        loss = loss_of(net, step)
        scaler.scale(loss * float("inf") if (step, rank) == (1, 1) else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale(), optimizer.skipped_steps, bits(net.parameters())


def test_a_scale_that_overflows_on_one_rank_falls_on_all(run):
    net = network(range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in (0, 2):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()
    for scale, skipped, values in run(2, scale_the_loss):
        assert (scale, skipped) == (32.0, 1)
        for mine, theirs in zip(values, net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=2e-6, atol=2e-7)


def log_alone(net):
    return net[0].weight.grad.norm()


def read_alone(net):
    return net[0].weight.grad.sum()


def halve_alone(net):
    for parameter in net.parameters():
        parameter.grad.mul_(0.5)


def halve_one_alone(net):
    net[0].weight.grad.mul_(0.5)


def change_alone(net):
    torch.nn.utils.clip_grad_value_(net.parameters(), 1e-3)


def halve_between_passes_alone(net):
    net[0].weight.grad.mul_(0.5)
    loss_of(net, 1).backward()


def do_alone(group, rank, use, steps):
    """What ranks are told where the first of them does something alone, and whether they go on."""
    net = network((rank,))
    before = bits(net.parameters())
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group, stage=2,
                             accumulation_steps=steps)

    def step():
        loss_of(net, 0).backward()
        if rank == 0:
            use(net)
        elif use is halve_between_passes_alone:
            loss_of(net, 1).backward()
        optimizer.step()

    told = raised(step)
    assert equal(bits(net.parameters()), before)
    return told


@pytest.mark.parametrize("use, words", [
    (log_alone, "rank 0 measures the gradient of its parameter 0"),
    (read_alone, "rank 0 reads the gradient of its parameter 0"),
    (halve_alone, "rank 1 calls step with settings.*p.grad"),
    (halve_one_alone, "rank 1 calls step with settings.*p.grad"),
    (halve_between_passes_alone, "rank 1 calls step with settings.*p.grad"),
    (change_alone, "rank 0 reads the gradient of its parameter 0")])
def test_what_one_rank_does_alone_is_named(tmp_path, use, words):
    with ranks_at(tmp_path / "store") as run:
        told = run(2, do_alone, use, None)
    assert any(re.search(words, text) for text in told), told
    assert all("all ranks run the same loop" in text for text in told)


def meet_limits(group, rank):
    """What all ranks are told alike."""
    told = []

    def with_a_missing_gradient(net):
        loss_of(net[:3 - rank], 0).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    def in_a_hook(net):
        net[0].bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
        loss_of(net, 0).backward()

    def with_one_dropped(net):
        loss_of(net, 0).backward()
        net[1].weight.grad = None
        optimizer.step()

    def with_one_at_zero(net):
        loss_of(net, 0).backward()
        net[1].weight.grad.zero_()
        optimizer.step()

    for use in (with_a_missing_gradient, in_a_hook, with_one_dropped, with_one_at_zero):
        net = network((rank,))
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group, missing="zero")
        told.append(raised(lambda use=use, net=net: use(net)))
        optimizer.zero_grad()
        del net
    tensors = parameters()
    optimizer = OffloadedAdamW(tensors, process_group=group)
    give(tensors)
    kept = tensors[0].grad
    optimizer.step()
    told.append(raised(kept.sum))
    return told


def test_limits_are_named_on_all_ranks(run):
    words = ["rank 1 has had or changed gradients of other|rank 0 has had or",
             "used in a backward pass", "parameter 2 of group 0 was dropped or set to zero",
             "parameter 2 of group 0 was dropped or set to zero", "gone with its step"]
    for told in run(2, meet_limits):
        for word, text in zip(words, told, strict=True):
            assert any(each in text for each in word.split("|")), text


def clip_in_the_engine(group, rank, more):
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "zero_optimization": {"stage": 2},
              "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, **more}
    engine = initialize(model=network((rank,)), config=config)[0]
    for number in range(8):
        engine.backward(loss_of(engine.module, number))
        if not more and engine.is_gradient_accumulation_boundary():
            torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 0.05)
        engine.step()
    return bits(engine.module.parameters())


def test_a_clip_of_torch_in_the_engine_is_that_of_the_configuration(run):
    size = 3  # all processes that there are
    mine = run(size, clip_in_the_engine, {})
    theirs = run(size, clip_in_the_engine, {"gradient_clipping": 0.05})
    for some, other in zip(mine, theirs, strict=True):
        for one, same in zip(some, other, strict=True):
            torch.testing.assert_close(one, same, rtol=2e-6, atol=2e-7)


def copies(group, rank):
    net = network((rank,))
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group)
    loss_of(net, 0).backward()
    copied = copy.deepcopy(net[0].weight.grad)
    gathered = [torch.zeros_like(copied) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, copied, group)
    optimizer.step()
    return gathered


def test_all_ranks_read_the_same_bits(run):
    for gathered in run(3, copies):
        assert all(torch.equal(gathered[0], other) for other in gathered)


def drop_late(group, rank):
    """What a loop without zero_grad is told, and a critic whose gradients are dropped late."""
    net = network((rank,))
    optimizer = OffloadedSGD(net.parameters(), lr=0.1, process_group=group)
    told = []
    for number in range(3):
        net.zero_grad()
        loss_of(net, number).backward()
        optimizer.step()
        loss_of(net, 10 + number).backward()
        before = bits(net.parameters())
        told += [raised(optimizer.step), raised(lambda: net[0].weight.grad.sum()),
                 raised(lambda: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0))]
        assert equal(bits(net.parameters()), before)
    return told, bits(net.parameters())


def test_a_gradient_of_the_last_step_is_refused_unless_it_is_dropped(run):
    net = network(range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(net, number).backward()
        optimizer.step()
    for told, values in run(2, drop_late):
        for text, word in zip(told, 3 * ["in the last step is its grad still.*zero_grad",
                                         "gone with its step", "gone with its step"], strict=True):
            assert re.search(word, text), text
        for mine, theirs in zip(values, net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=2e-6, atol=2e-7)
