"""The optimizers of spillway.torch beside those of torch.optim: the same trajectories, and loops
that stay as they are.

Where the bound of a trajectory comes from: torch's optimizer runs in fp64 and in fp32 on the same
gradients. The two differ by the roundings of fp32 alone, and ours may be FACTOR times as far from
the fp64 run, elementwise, as the fp32 run is at worst: it rounds as often, at other places.
"""
import copy
import warnings

import pytest
import torch

import spillway
from spillway.torch import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedSGD,
)

FACTOR = 2
SHAPES = ((40, 30), (257,), (3, 5, 7), (1,))


class Lion(torch.optim.Optimizer):
    """Written from the paper (Chen et al. 2023, algorithm 2)."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_((m * b1 + p.grad * (1 - b1)).sign(), alpha=lr)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


PAIRS = {
    "adamw": (OffloadedAdamW, torch.optim.AdamW, {"lr": 3e-3, "weight_decay": 0.1}),
    "adam": (OffloadedAdam, torch.optim.Adam,
             {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.01}),
    "adagrad": (OffloadedAdagrad, torch.optim.Adagrad,
                {"lr": 0.05, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "sgd": (OffloadedSGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}),
    "lion": (OffloadedLion, Lion, {"lr": 1e-3, "weight_decay": 0.1}),
}


def parameters(dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
            for shape in SHAPES]


def give_gradients(tensors, step, micro_batch=0):
    """The same gradients for every run, of sizes that differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    for tensor in tensors:
        gradient = torch.randn(tensor.shape, generator=generator) * 10.0 ** (step % 5 - 3)
        # Through autograd, as a loss would; a second one adds up.
        (tensor * gradient.to(tensor.dtype)).sum().backward()


def groups(tensors):
    return [{"params": tensors[:2]},
            {"params": tensors[2:], "weight_decay": 0.0, "lr": 1e-3}]


def run_torch(kind, arguments, steps, dtype, micro_batches=1, max_norm=0.0):
    tensors = parameters(dtype)
    optimizer = kind(groups(tensors), **arguments)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n / 50))
    for step in range(steps):
        for micro_batch in range(micro_batches):
            give_gradients(tensors, step, micro_batch)
        if max_norm:
            torch.nn.utils.clip_grad_norm_(tensors, max_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return tensors


def has_memory(tensor):
    """Whether a tensor has elements, and not only a form."""
    try:
        return torch.Tensor.untyped_storage(tensor).data_ptr() != 0
    except RuntimeError as error:
        assert "invalid python storage" in str(error)
        return False


class Reads(torch.nn.Module):
    """Its forward pass has its parameters."""

    def __init__(self, tensors):
        super().__init__()
        self.tensors = torch.nn.ParameterList(tensors)

    def forward(self):
        return list(self.tensors)


def run_ours(kind, arguments, steps, micro_batches=1, dtype=torch.float32, **options):
    tensors = parameters(dtype)
    reads = Reads(tensors)
    if options.get("deferred"):
        options["deferred"] = reads
    optimizer = kind(groups(tensors), accumulation_steps=micro_batches, **arguments, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n / 50))
    for step in range(steps):
        for micro_batch in range(micro_batches):
            give_gradients(reads(), step, micro_batch)
            assert not any(has_memory(tensor.grad) for tensor in tensors), "gradients stay"
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    optimizer.synchronize()
    return tensors


def distance(some, others):
    return [float((a.detach().double() - b.detach().double()).abs().max())
            for a, b in zip(some, others, strict=True)]


def assert_same_bits(some, others):
    for a, b in zip(some, others, strict=True):
        assert torch.equal(a.detach(), b.detach())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("micro_batches, max_norm", [(1, 0.0), (3, 0.5)])
def test_trajectory_is_that_of_torch(name, micro_batches, max_norm):
    ours_kind, torch_kind, arguments = PAIRS[name]
    steps = 1000 if name == "adamw" else 200
    exact = run_torch(torch_kind, arguments, steps, torch.float64, micro_batches, max_norm)
    rounded = run_torch(torch_kind, arguments, steps, torch.float32, micro_batches, max_norm)
    ours = run_ours(ours_kind, arguments, steps, micro_batches, max_norm=max_norm)
    for away, allowed in zip(distance(ours, exact), distance(rounded, exact), strict=True):
        assert away <= FACTOR * allowed + 1e-7
    start = parameters()
    assert max(distance(ours, start)) > 1e-2, "nothing was trained"


def test_any_number_of_backward_passes_may_come_before_a_step():
    ours, theirs = parameters(), parameters()
    mine, reference = OffloadedAdamW(ours, accumulation_steps=None), torch.optim.AdamW(theirs)
    for step, micro_batches in enumerate((1, 3, 2, 1)):
        for tensors, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            for micro_batch in range(micro_batches):
                give_gradients(tensors, step, micro_batch)
            optimizer.step()
    assert max(distance(ours, theirs)) < 1e-6


@pytest.mark.parametrize("options", [
    {"threads": 1}, {"isa": "scalar"}, {"nvme": True}, {"deferred": True},
    {"nvme": True, "deferred": True}])
def test_where_and_when_it_is_updated_changes_no_bit(tmp_path, options):
    arguments = PAIRS["adamw"][2]
    usual = run_ours(OffloadedAdamW, arguments, 20)
    if options.get("nvme"):
        options = {**options, "nvme": [tmp_path]}
    assert_same_bits(run_ours(OffloadedAdamW, arguments, 20, **options), usual)


def test_split_keeps_the_bits_of_fp32_and_shorter_states_stay_near():
    arguments = PAIRS["adamw"][2]
    usual = run_ours(OffloadedAdamW, arguments, 50, dtype=torch.bfloat16)
    split = run_ours(OffloadedAdamW, arguments, 50, dtype=torch.bfloat16, state_format="split")
    assert_same_bits(split, usual)
    exact = run_torch(torch.optim.AdamW, arguments, 50, torch.float64)
    start = parameters()
    for state_format in ("bf16", "int8"):
        short = run_ours(OffloadedAdamW, arguments, 50, dtype=torch.bfloat16,
                         state_format=state_format)
        # A bf16 value has 8 bits, and the moments change a few percent of the way.
        for away, way, value in zip(distance(short, exact), distance(exact, start), exact,
                                    strict=True):
            assert away <= 0.3 * way + float(value.detach().abs().max()) / 256


class Tied(torch.nn.Module):
    """A tiny language model whose head is its embedding."""

    def __init__(self, width=16, words=32, layers=2):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return torch.nn.functional.cross_entropy(self.head(x)[:-1], tokens[1:])


def model(seed=0):
    torch.manual_seed(seed)
    return Tied()


def tokens(step):
    return torch.randint(32, (24,), generator=torch.Generator().manual_seed(step))


def train(net, optimizer, steps, clip=None, first=0):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = net(tokens(step))
        loss.backward()
        if clip is not None:
            clip(net, optimizer)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("deferred", [False, True])
def test_a_loop_stays_as_it_is_with_tied_and_frozen_weights(deferred):
    ours, theirs = model(), model()
    for net in (ours, theirs):
        net.layers[0].weight.requires_grad_(False)
    frozen = ours.layers[0].weight.clone()
    optimizer = OffloadedAdamW(ours.parameters(), lr=1e-2, deferred=ours if deferred else None)
    assert ours.head.weight is ours.embedding.weight
    mine = train(ours, optimizer, 30)
    reference = train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2), 30)
    # Feedback through the loss carries roundings on; 1e-4 is 0.003 % of these losses.
    assert mine == pytest.approx(reference, abs=1e-4)
    assert mine[-1] < mine[0]
    assert torch.equal(frozen, ours.layers[0].weight)


def test_clipping_returns_the_norm_of_torch():
    ours, theirs = model(), model()
    norms = {}

    def clip(net, optimizer):
        norm = (optimizer.clip_grad_norm_(0.1) if net is ours else
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        norms.setdefault(net is ours, []).append(float(norm))

    mine = train(ours, OffloadedAdamW(ours.parameters(), lr=1e-2), 20, clip)
    reference = train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2), 20, clip)
    assert mine == pytest.approx(reference, abs=1e-4)
    assert norms[True] == pytest.approx(norms[False], rel=1e-3)


@pytest.mark.parametrize("wrong, words", [
    ({"max_norm": -1.0}, "max_norm is -1.0; it must be above 0, or 0 for no clipping"),
    ({"max_norm": float("nan")}, "max_norm is nan"), ({"max_norm": None}, "max_norm is None"),
    ({"deferred": True}, "deferred is given True, of type bool, where a torch.nn.Module")])
def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path, wrong, words):
    weight = torch.nn.Parameter(torch.ones(8))
    place = weight.data_ptr()
    with pytest.raises(spillway.InvalidArgumentError, match=words):
        OffloadedAdamW([weight], nvme=tmp_path, **wrong)
    assert weight.data_ptr() == place and list(tmp_path.iterdir()) == []
    optimizer = OffloadedAdamW([weight])
    weight.sum().backward()
    with pytest.raises(spillway.InvalidArgumentError, match="max_norm is -1"):
        optimizer.clip_grad_norm_(-1)
    optimizer.step()


def test_a_call_that_clips_is_for_one_step():
    ours, theirs = parameters(), parameters()
    mine, reference = OffloadedSGD(ours, lr=0.1), torch.optim.SGD(theirs, lr=0.1)
    for step in range(2):
        for tensors in (ours, theirs):
            for tensor in tensors:
                tensor.grad = torch.ones_like(tensor)
        if step == 0:
            mine.clip_grad_norm_(0.5)
            torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        mine.step()
        reference.step()
    assert max(distance(ours, theirs)) < 1e-6


def test_groups_that_come_later_train_with_one_norm():
    ours, theirs = model(), model()
    runs = []
    for net, kind in ((ours, OffloadedAdamW), (theirs, torch.optim.AdamW)):
        net.layers.requires_grad_(False)
        optimizer = kind([p for p in net.parameters() if p.requires_grad], lr=1e-2)
        losses = train(net, optimizer, 5)
        net.layers.requires_grad_(True)
        optimizer.add_param_group({"params": list(net.layers.parameters()), "lr": 3e-3})

        def clip(net, optimizer):
            if net is ours:
                optimizer.clip_grad_norm_(0.1)
            else:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)

        runs.append(losses + train(net, optimizer, 15, clip, first=5))
    assert runs[0] == pytest.approx(runs[1], abs=1e-4)


def test_a_group_that_does_not_fit_is_not_there():
    first, large = torch.nn.Parameter(torch.ones(20)), torch.nn.Parameter(torch.zeros(4_000_000))
    optimizer = OffloadedAdamW([first], lr=0.1, weight_decay=0, host_memory="60MB")
    with pytest.raises(spillway.DoesNotFitError):
        optimizer.add_param_group({"params": [large]})
    assert [group["params"] for group in optimizer.param_groups] == [[first]]
    large = torch.nn.Parameter(torch.zeros(40))
    optimizer.add_param_group({"params": [large]})
    (first.sum() + large.sum()).backward()
    optimizer.step()
    assert first[0].item() == pytest.approx(0.9, abs=1e-3)
    assert large[0].item() == pytest.approx(-0.1, abs=1e-3)


def test_mixed_dtypes_share_one_norm_and_one_decision():
    torch.manual_seed(0)
    matrix = torch.nn.Parameter(torch.randn(20, 20).bfloat16())
    norm = torch.nn.Parameter(torch.ones(20))
    optimizer = OffloadedAdamW([matrix, norm], lr=0.1, state_format="int8", weight_decay=0)
    before = matrix.detach().clone(), norm.detach().clone()
    matrix.grad, norm.grad = torch.full_like(matrix, 3.0), torch.full_like(norm, 4.0)
    optimizer.step()
    assert optimizer.grad_norm == pytest.approx((400 * 9 + 20 * 16) ** 0.5)
    after = matrix.detach().clone(), norm.detach().clone()
    assert not torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])
    matrix.grad, norm.grad = torch.ones_like(matrix), torch.full_like(norm, float("inf"))
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert_same_bits((matrix, norm), after)


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_may_be_set_by_hand_and_parameters_written_between_steps(by_hand):
    ours, theirs = parameters(), parameters()
    mine, reference = OffloadedAdamW(ours), torch.optim.AdamW(theirs)
    for step in range(4):
        for tensors in (ours, theirs):
            if step == 1:
                with torch.no_grad():
                    tensors[0].mul_(0.5)
            if step == 2:
                tensors[1].data = torch.zeros_like(tensors[1])
            for tensor in tensors:
                if by_hand:
                    tensor.grad = torch.full_like(tensor, 1.0 + step)
                else:
                    tensor.grad = None
                    (tensor.sum() * (1.0 + step)).backward()
        mine.step()
        reference.step()
    assert max(distance(ours, theirs)) < 1e-6


def test_grad_scaler_scales_and_skips():
    ours, theirs = model(), model()
    runs = []
    for net, optimizer in ((ours, OffloadedAdamW(ours.parameters(), lr=1e-2)),
                           (theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2))):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        scales = []
        for step in range(8):
            optimizer.zero_grad()
            loss = net(tokens(step))
            if step == 4:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        runs.append((scales, copy.deepcopy([p.detach() for p in net.parameters()])))
    assert runs[0][0] == runs[1][0]
    assert max(distance(runs[0][1], runs[1][1])) < 1e-4
