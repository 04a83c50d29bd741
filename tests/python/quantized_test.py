"""Bases that are quantized and streamed: each kind of place where a quantizer keeps bytes."""
import copy
import functools
import types

import pytest
import torch
from block_model import BlockModel
from quantized_layers import KINDS, SHARED, Buffers, Codes, StateOfParameter, Twice, Wrapper

import spillway.torch
from spillway import NotSupportedError
from spillway._load import native
from spillway.torch import OffloadedAdamW, offload_model

WIDTH, BLOCKS = 64, 8


class Block(torch.nn.Module):
    """A quantized layer with an adapter beside it."""

    def __init__(self, kind, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width).requires_grad_(False)
        self.base = kind(torch.randn(width, width))
        self.down = torch.nn.Parameter(torch.randn(4, width) * 0.1)
        self.up = torch.nn.Parameter(torch.randn(width, 4) * 0.1)

    def forward(self, x):
        h = self.norm(x)
        adapted = h @ self.down.t() @ self.up.t()
        # Whose backward pass comes first, before any that needs an adapter.
        return x + adapted + torch.tanh(self.base(h))


def make(kind, recomputes=False):
    torch.manual_seed(1)
    model = BlockModel(functools.partial(Block, kind), BLOCKS, WIDTH, recomputes)
    model.embedding.requires_grad_(False)
    return model


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def batch(step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps):
    """Losses and gradients of steps."""
    found = []
    for step in steps:
        optimizer.zero_grad()
        loss = model(batch(step))
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in trained(model))])
        optimizer.step()
    return found


def equal(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(x, y, strict=True))


def on_device(optimizer):
    return sum(size for shard in optimizer._shards for tier, _, size in shard.trainer.memory()
               if tier == "device")


BUDGET = 120_000  # of more than 300 KB


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_has_the_bits_of_a_base_that_stays(kind, recomputes):
    alone = make(kind)
    alone(batch(0)).backward()  # torch, and nobody else
    first = [parameter.grad for parameter in trained(alone)]
    resident, streamed = make(kind), make(kind, recomputes)
    offload_model(streamed, BUDGET)
    optimizer = OffloadedAdamW(trained(streamed), lr=1e-2, max_norm=1.0)
    expected = train(resident, OffloadedAdamW(trained(resident), lr=1e-2, max_norm=1.0), range(5))
    found = train(streamed, optimizer, range(5))
    equal(expected, found)
    equal([first], [found[0][1:]])
    equal([trained(resident)], [trained(streamed)])
    assert on_device(optimizer) <= BUDGET
    # Bytes of the base were in the slots of the device, and nowhere else.
    seen = set.union(*(block.base.seen for block in streamed.blocks))
    kept = max(len(block.base.seen) for block in resident.blocks)
    assert len(seen) <= 3 * kept < BLOCKS * kept


def test_what_a_quantizer_shares_between_models_stays_its_own():
    model, before = make(StateOfParameter), SHARED.data_ptr()
    offload_model(model, BUDGET)
    with OffloadedAdamW(trained(model)) as optimizer:
        train(model, optimizer, range(1))
        assert SHARED.data_ptr() == before
        codes = {id(block.base.weight.quant_state.code) for block in model.blocks}
        assert len(codes) == 1 and id(SHARED) not in codes


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_counts_the_bytes_of_a_base(kind):
    model = make(kind)
    plan = spillway.torch.plan(model, trained(model), device_memory=BUDGET)
    offload_model(model, BUDGET)
    optimizer = OffloadedAdamW(trained(model))
    (shard,) = optimizer._shards
    taken = {"host": 0, "device": 0}
    for tier, _, size in shard.trainer.memory():
        taken[tier] += size
    assert (plan.host, plan.device) == (taken["host"], taken["device"])
    assert plan.memory["host"]["frozen parameters"] >= BLOCKS * WIDTH * WIDTH // 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_may_be_used_twice_and_dropped(kind):
    model = make(kind)
    offload_model(model, BUDGET)
    with OffloadedAdamW(trained(model), accumulation_steps=None) as optimizer:
        loss = model(batch(1))
        loss.backward(retain_graph=True)
        once = [parameter.grad.clone() for parameter in trained(model)]
        with torch.no_grad():
            model(batch(2))
        loss.backward()
        equal([once], [[parameter.grad / 2 for parameter in trained(model)]])
        optimizer.zero_grad()


def test_a_state_dict_has_the_base_at_any_time():
    model = make(Buffers)
    saved = copy.deepcopy(model.state_dict())
    offload_model(model, BUDGET)
    optimizer = OffloadedAdamW(trained(model))
    train(model, optimizer, range(1))
    now = model.state_dict()
    assert all(torch.equal(now[name], saved[name]) for name in saved if "base." in name)
    # What the program writes there in place counts from the next pass on.
    with torch.no_grad():
        before = model(batch(3))
        model.blocks[5].base.scales.mul_(0.5)
        after = model(batch(3))
    resident = make(Buffers)
    resident.load_state_dict(model.state_dict())
    assert before != after and torch.equal(after, resident(batch(3)))


class Unknown(Buffers):
    def __init__(self, weight):
        super().__init__(weight)
        self.cache = Workspace(torch.zeros(3))


class Workspace:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = [inner]


class NotYet(StateOfParameter):
    def __init__(self, weight):
        super().__init__(weight)
        self.weight.__class__ = type("Params4bit", (type(self.weight),), {"bnb_quantized": False})


def test_what_is_unknown_is_refused_by_the_name_of_its_class():
    with pytest.raises(NotSupportedError, match=r"blocks\.0\.base\.cache is a .*Workspace"):
        offload_model(make(Unknown), BUDGET)
    with pytest.raises(NotSupportedError, match=r"blocks\.0\.base\.weight is a Params4bit that is "
                                                r"not quantized yet.*model\.to\(\"cpu\"\)"):
        offload_model(make(NotYet), BUDGET)
    trains = make(Wrapper)
    trains.blocks[3].base.weight.requires_grad_(True)
    with pytest.raises(NotSupportedError, match=r"blocks\.3\.base\.weight is a Codes and needs"):
        offload_model(trains, BUDGET)
    outside = make(Twice)
    outside.head.weight = torch.nn.Parameter(
        Codes(torch.ones(1, WIDTH), torch.ones(1), torch.ones(1), set()), requires_grad=False)
    with pytest.raises(NotSupportedError, match=r"head\.weight is a Codes, and of no block"):
        offload_model(outside, BUDGET)


def test_a_head_of_another_element_type_trains_beside_adapters():
    """As modules_to_save of PEFT in a bfloat16 base, whose adapters are fp32."""
    class Mixed(BlockModel):
        def forward(self, x):
            x = self.embedding(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.bfloat16()).float().square().mean()

    def mixed():
        torch.manual_seed(1)
        model = Mixed(functools.partial(Block, Buffers), BLOCKS, WIDTH)
        model.head.bfloat16()
        model.embedding.requires_grad_(False)
        return model

    resident, streamed = mixed(), mixed()
    offload_model(streamed, BUDGET)
    expected = train(resident, OffloadedAdamW(trained(resident), lr=1e-2, max_norm=1.0), range(5))
    optimizer = OffloadedAdamW(trained(streamed), lr=1e-2, max_norm=1.0)
    equal(expected, train(streamed, optimizer, range(5)))
    equal([trained(resident)], [trained(streamed)])
    # Each of the head's parameters has leaves of its own: on a GPU, in a trainer's memory there.
    beside = 2 * native.leaf_parameters * torch.bfloat16.itemsize
    on_it = on_device(optimizer)
    of_blocks = max(on_device(types.SimpleNamespace(_shards=[each])) for each in optimizer._shards)
    assert on_it - of_blocks in (0, beside)
    assert of_blocks <= BUDGET - beside
    plan = spillway.torch.plan(mixed(), device_memory=BUDGET)
    assert plan.device == of_blocks
    less = mixed()
    offload_model(less, of_blocks + beside - 1)
    assert on_device(OffloadedAdamW(trained(less))) < on_it  # one slot less
    streamed.embedding.requires_grad_(True)
    with pytest.raises(NotSupportedError, match="is trained since the optimizer was made"):
        optimizer.add_param_group({"params": list(streamed.embedding.parameters())})
