"""Gradients that the optimizer has are tensors all the same.

Each use is run with torch's optimizer and with ours, and the parameters are compared.
"""
import copy
import io
import weakref

import pytest
import torch

import spillway
from spillway.torch import OffloadedAdamW, OffloadedSGD, offload_model

# In bfloat16 torch rounds parameters after each step and sums of gradients after each pass.
STEPS = {torch.float32: 3, torch.bfloat16: 1}
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 4e-2}


def network(dtype=torch.float32, blocks=3, width=8):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(blocks)))
    return net.to(dtype)


def loss_of(net, number, scale=1.0):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
    return scale * net(x.to(net[0].weight.dtype)).float().square().mean()


def grads(net):
    return [parameter.grad for parameter in net.parameters()]


def changed_by(change):
    """A step whose gradients are changed by that between backward and update."""
    def use(net, optimizer, number):
        optimizer.zero_grad()
        loss_of(net, number).backward()
        change(net)
        optimizer.step()
    return use


def each(change):
    def of_all(net):
        for parameter in net.parameters():
            change(parameter)
    return changed_by(of_all)


def replaced(parameter):
    parameter.grad = parameter.grad * 0.5


def set_data(parameter):
    parameter.grad.data = parameter.grad * 0.5


def through_a_view(parameter):
    parameter.grad.view(-1)[:3] = 0.25


def kept_view(parameter):
    view = parameter.grad.flatten()
    parameter.grad.mul_(0.5)
    view[0] += 0.125


def copied(parameter):
    parameter.grad.copy_(torch.full_like(parameter.grad, 0.01))


def through_numpy(parameter):
    if parameter.dtype == torch.float32:
        parameter.grad.numpy()[...] *= 0.5


def through_dlpack(parameter):
    torch.from_dlpack(parameter.grad).mul_(0.5)


def centred(parameter):
    if parameter.dim() > 1:
        parameter.grad.sub_(parameter.grad.mean(dim=1, keepdim=True))


def normalised(parameter):
    parameter.grad /= parameter.grad.norm() + 1e-6


def different(net):
    for number, parameter in enumerate(net.parameters()):
        parameter.grad.mul_(0.5 ** number)


def through_lists(net):
    torch._foreach_mul_(grads(net), 0.5)
    torch._foreach_div_(grads(net), [2.0] * len(grads(net)))
    torch._foreach_add_(grads(net), 0.001)
    torch._foreach_mul_(grads(net), torch.tensor(0.75))


def from_a_vector(net):
    vector = torch.nn.utils.parameters_to_vector(grads(net)) * 0.5
    for parameter in net.parameters():
        parameter.grad = vector[:parameter.numel()].view_as(parameter).clone()
        vector = vector[parameter.numel():]


def into_gradients(net):
    torch.nn.utils.vector_to_parameters(torch.full((216,), 0.01, dtype=net[0].weight.dtype),
                                        grads(net))


def some_dropped(net):
    net[0].weight.grad = None
    net[1].bias.grad.zero_()


def scaled(net, optimizer, number, after=None):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(net, number)).backward()
    scaler.unscale_(optimizer)
    if after is not None:
        after(net)
    scaler.step(optimizer)
    scaler.update()


def scaled_and_clipped(net, optimizer, number):
    scaled(net, optimizer, number,
           lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05))


def accumulated(net, optimizer, number, between=None):
    optimizer.zero_grad()
    for part in range(3):
        loss_of(net, 10 * number + part).backward()
        if between is not None:
            between(net)
    optimizer.step()


def clipped_between(net, optimizer, number):
    accumulated(net, optimizer, number,
                lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05))


def logged_between(net, optimizer, number):
    accumulated(net, optimizer, number, lambda net: torch.nn.utils.get_total_norm(grads(net)))


def changed_between(net, optimizer, number):
    accumulated(net, optimizer, number, lambda net: net[0].weight.grad.clamp_(-0.01, 0.01))


def zeroed_in_place(net, optimizer, number):
    net.zero_grad(set_to_none=False)
    loss_of(net, number).backward()
    optimizer.step()


def noisy(parameter):
    parameter.grad.add_(torch.full_like(parameter.grad, 0.001))


def clip_norm(**options):
    return changed_by(lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05,
                                                                 **options))


def clip_norm_by_hand(net):
    norm = torch.stack([parameter.grad.detach().norm() for parameter in net.parameters()]).norm()
    for parameter in net.parameters():
        parameter.grad.detach().mul_(0.05 / (norm + 1e-6))


USES = {
    "nothing": each(lambda _: None),
    "clip norm": clip_norm(),
    "clip norm of each": clip_norm(foreach=False),
    "clip largest": clip_norm(norm_type=float("inf")),
    "clip sum": clip_norm(norm_type=1.0),
    "clip norm by hand": changed_by(clip_norm_by_hand),
    "clip twice": changed_by(lambda net: [torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                                          for _ in range(2)]),
    "clip value": changed_by(lambda net: torch.nn.utils.clip_grad_value_(net.parameters(), 1e-3)),
    "half": each(lambda p: p.grad.mul_(0.5)),
    "half of data": each(lambda p: p.grad.data.mul_(0.5)),
    "quotient": each(lambda p: p.grad.div_(2)),
    "floor": each(lambda p: p.grad.div_(0.01, rounding_mode="floor")),
    "negative": each(lambda p: p.grad.neg_()),
    "times -1": each(lambda p: p.grad.mul_(-1)),
    "times 0": each(lambda p: p.grad.mul_(0)),
    "times a mask": each(lambda p: p.grad.mul_((p > 0).to(p.dtype))),
    "different factors": changed_by(different),
    "replaced": each(replaced),
    "other data": each(set_data),
    "clamped": each(lambda p: p.grad.clamp_(-1e-3, 1e-3)),
    "clamped data": each(lambda p: p.grad.data.clamp_(-1e-3, 1e-3)),
    "noise": each(noisy),
    "sign": each(lambda p: p.grad.sign_()),
    "copied": each(copied),
    "row": each(lambda p: p.grad[0].zero_()),
    "masked": each(lambda p: p.grad.__setitem__(p.grad < 0, 0.0)),
    "view": each(through_a_view),
    "kept view": each(kept_view),
    "numpy": each(through_numpy),
    "dlpack": each(through_dlpack),
    "centred": each(centred),
    "normalised": each(normalised),
    "lists": changed_by(through_lists),
    "vector": changed_by(from_a_vector),
    "vector into gradients": changed_by(into_gradients),
    "some dropped": changed_by(some_dropped),
    "scaler": scaled,
    "scaler and clip": scaled_and_clipped,
    "accumulated": accumulated,
    "clipped between passes": clipped_between,
    "changed between passes": changed_between,
    "logged between passes": logged_between,
    "zeroed in place": zeroed_in_place,
}


def check_as_with_torch(use, steps, dtype):
    """Compares parameters after some steps with either optimizer."""
    nets = []
    for ours in (True, False):
        net = network(dtype)
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=steps) if ours else (
            torch.optim.SGD(net.parameters(), lr=0.1))
        for number in range(STEPS[dtype]):
            use(net, optimizer, number)
        nets.append(net)
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype] / 10)


@pytest.mark.parametrize("dtype", BOUNDS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("steps", [1, None, 2])
@pytest.mark.parametrize("use", USES)
def test_what_a_loop_does_to_gradients_is_done(use, steps, dtype):
    check_as_with_torch(USES[use], steps, dtype)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("use", ["clip norm", "clamped", "accumulated", "clipped between passes",
                                 "changed between passes"])
def test_gradients_that_come_beside_an_update_or_of_streamed_parameters_are_changed(use, streamed):
    nets = []
    for ours in (True, False):
        net = network()
        if ours and streamed:
            offload_model(net, "200KB")
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=None,
                                 deferred=net) if ours else (
            torch.optim.SGD(net.parameters(), lr=0.1))
        for number in range(3):
            USES[use](net, optimizer, number)
        nets.append(net)
        if ours:
            optimizer.synchronize()
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-7)


READS = {
    "norms": lambda net: torch.stack([g.norm() for g in grads(net)]),
    "norms of lists": lambda net: torch.stack(torch._foreach_norm(grads(net))),
    "norms of rows": lambda net: torch.cat([g.norm(dim=-1).view(-1) for g in grads(net)]),
    "total": lambda net: torch.nn.utils.get_total_norm(grads(net)),
    "values": lambda net: torch.cat([g.flatten() for g in grads(net)]),
    "copies": lambda net: torch.cat([g.cpu().clone().view(-1) for g in grads(net)]),
    "items": lambda net: torch.tensor([g.sum().item() for g in grads(net)]),
    "lists": lambda net: torch.tensor([g.view(-1).tolist()[0] for g in grads(net)]),
    "comparison": lambda net: torch.stack([(g > 0).sum() for g in grads(net)]),
    "saved": lambda net: saved(grads(net))[0],
    "copied deeply": lambda net: copy.deepcopy(net[0].weight.grad),
    "products": lambda net: torch.stack([(g * g).sum() for g in grads(net)]),
    "text": lambda net: torch.tensor([len(repr(net[0].weight.grad))]),
}


def saved(tensors):
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("steps", [1, None])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("read", READS)
def test_what_is_read_of_a_gradient_is_the_gradient(read, streamed, steps):
    found = []
    for ours in (True, False):
        net = network()
        if ours and streamed:
            offload_model(net, "200KB")
        optimizer = OffloadedSGD(net.parameters(), lr=0.1, accumulation_steps=steps) if ours else (
            torch.optim.SGD(net.parameters(), lr=0.1))
        loss_of(net, 0).backward()
        found.append(READS[read](net).clone())
        optimizer.step()
        found.append(torch.cat([p.detach().flatten().clone() for p in net.parameters()]))
    torch.testing.assert_close(found[0], found[2], rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(found[1], found[3], rtol=2e-6, atol=1e-7)


def test_a_quotient_by_0_is_one():
    net = network()
    _optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    loss_of(net, 0).backward()
    net[0].weight.grad.div_(0)
    assert net[0].weight.grad.isinf().all()


def test_a_norm_that_is_read_is_that_of_the_update():
    net = network(torch.bfloat16)
    optimizer = OffloadedAdamW(net.parameters(), accumulation_steps=None, max_norm=1e-3)
    for number in range(3):
        loss_of(net, number).backward()
    norm = torch.nn.utils.get_total_norm(grads(net))
    optimizer.step()
    assert float(norm) == pytest.approx(optimizer.grad_norm, rel=1e-6)


def test_a_clip_of_ours_comes_on_top_of_one_of_torch():
    ours, theirs = network(), network()
    mine = OffloadedSGD(ours.parameters(), lr=0.1, max_norm=0.02)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for number in range(3):
        for net, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            loss_of(net, number).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.02)
        mine.step()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)


def test_a_gradient_takes_no_memory_and_is_gone_once_it_is_dropped_after_its_step():
    net = network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    loss_of(net, 0).backward()
    gradient = net[0].weight.grad
    with pytest.raises(RuntimeError, match="invalid python storage"):
        torch.Tensor.untyped_storage(gradient).data_ptr()
    optimizer.step()
    assert net[0].weight.grad is gradient
    with pytest.raises(RuntimeError, match="invalid python storage"):
        torch.Tensor.untyped_storage(gradient).data_ptr()
    net.zero_grad()
    loss_of(net, 1).backward()
    with pytest.raises(spillway.InvalidArgumentError, match="gone with its step"):
        gradient.sum()


def test_a_step_that_only_multiplies_reads_nothing():
    net = network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    shard, = optimizer._shards
    reads = []
    gradient = type(shard).gradient
    type(shard).gradient = lambda self, index: reads.append(index) or gradient(self, index)
    try:
        loss_of(net, 0).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()
    finally:
        type(shard).gradient = gradient
    assert not reads


def test_a_handle_holds_no_optimizer():
    net = network()
    optimizer = OffloadedSGD(net.parameters(), lr=0.1)
    loss_of(net, 0).backward()
    kept, alive = net[0].weight.grad, weakref.ref(optimizer._shards[0])
    del optimizer
    assert alive() is None
    with pytest.raises(spillway.InvalidArgumentError, match="gone with its step"):
        kept.sum()
