"""Models whose parameters pass through a part of the device: inside the budget, and with the bits
of parameters that stay."""
import copy
import subprocess
import sys

import pytest
import torch
from block_model import BlockModel
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import spillway
from spillway.torch import OffloadedAdamW, offload_model


class Block(torch.nn.Module):
    """Uses its weights as layers do: through nn.Linear, a transposed view and a slice."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.inner = torch.nn.Linear(width, 2 * width)
        self.outer = torch.nn.Parameter(torch.randn(width, 2 * width) * 0.1)
        self.seen = []

    def forward(self, x):
        self.seen.append(self.inner.weight.data_ptr())
        if x.isnan().any():
            raise FloatingPointError("the input is not a number")
        h = torch.tanh(self.inner(self.norm(x)))
        return x + h @ self.outer.t() + h[..., : x.shape[-1]] * self.outer[:, 0]


def model_of_blocks(recomputes=False):
    return BlockModel(Block, 8, 128, recomputes)


def make(budget=None, dtype=torch.float32, recomputes=False, deferred=False, **options):
    torch.manual_seed(1)
    model = model_of_blocks(recomputes).to(dtype)
    if budget is not None:
        offload_model(model, budget)
    if deferred:
        options["deferred"] = model
    return model, OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0, **options)


class Recomputing(Block):
    """Recomputes itself, as layers of transformers do."""

    def __init__(self, width):
        super().__init__(width)
        self.reentrant = False

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


def test_the_import_leaves_the_compiler_out():
    """It takes longer than all else that the package imports."""
    script = ("import sys, torch; before = set(sys.modules); import spillway.torch; "
              "print([name for name in set(sys.modules) - before if 'torch._dynamo' in name])")
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def batch(step, rows=5):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps, passes=1, rows=5):
    losses = []
    for step in steps:
        for micro_batch in range(passes):
            loss = model(batch(100 * step + micro_batch, rows).to(next(model.parameters()).dtype))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def on_device(optimizer):
    (shard,) = optimizer._shards
    return sum(size for tier, _, size in shard.trainer.memory() if tier == "device")


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(),
                                                 strict=True))


@pytest.mark.parametrize(("dtype", "options", "passes"), [
    (torch.float32, {}, 1),
    (torch.bfloat16, {"state_format": "split"}, 1),
    (torch.float32, {"accumulation_steps": 3}, 3),
    (torch.float32, {"accumulation_steps": None}, 2),
    (torch.float32, {"deferred": True}, 1),
    (torch.bfloat16, {"deferred": True, "accumulation_steps": 2, "state_format": "split"}, 2),
])
def test_trains_four_times_its_budget_with_the_bits_of_a_resident_model(dtype, options, passes):
    resident, resident_optimizer = make(dtype=dtype, **options)
    size = sum(p.nbytes for p in resident.parameters())
    streamed, optimizer = make(size // 4, dtype, **options)
    assert train(resident, resident_optimizer, range(4), passes) == train(
        streamed, optimizer, range(4), passes)
    resident_optimizer.synchronize()
    optimizer.synchronize()
    assert same(resident, streamed)
    assert on_device(optimizer) <= size // 4
    # Blocks really computed on the few slots of the device.
    used = {address for block in streamed.blocks for address in block.seen}
    assert len(used) <= 3


def freeze(model):
    """Leaves some blocks partly frozen, one wholly, and one as it is."""
    for number, block in enumerate(model.blocks):
        if number != 1:
            block.inner.weight.requires_grad_(False)
            block.outer.requires_grad_(number % 2 == 0)
    model.blocks[5].requires_grad_(False)
    model.embedding.requires_grad_(False)
    return model


def test_frozen_parameters_are_streamed_and_stay_as_they_are():
    trained, optimizers = [], []
    for budget in (None, "700KB"):
        torch.manual_seed(1)
        model = freeze(model_of_blocks())
        if budget:
            offload_model(model, budget)
        before = copy.deepcopy(model.state_dict())
        optimizers.append(OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0))
        losses = train(model, optimizers[-1], range(2))
        # What the program writes there counts from the next pass on.
        with torch.no_grad():
            model.blocks[5].inner.weight.mul_(0.5)
            model.blocks[6].inner.weight.data = model.blocks[6].inner.weight.data * 0.5
            before["blocks.5.inner.weight"].mul_(0.5)
            before["blocks.6.inner.weight"].mul_(0.5)
        losses += train(model, optimizers[-1], range(2, 4))
        trained.append((losses, model))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, before[name]) != parameter.requires_grad
    assert trained[0][0] == trained[1][0]
    assert same(trained[0][1], trained[1][1])
    assert on_device(optimizers[1]) <= 700_000


def test_adapters_of_a_frozen_model_train_within_a_quarter_of_it():
    config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=256, num_hidden_layers=24,
                         num_attention_heads=4, num_key_value_heads=2)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    losses, models = [], []
    for streamed in (False, True):
        torch.manual_seed(2)
        base = LlamaForCausalLM(config).to(torch.bfloat16)
        size = sum(p.nbytes for p in base.parameters())
        model = get_peft_model(base, lora)  # whose adapters are fp32
        if streamed:
            offload_model(model, size // 4)
        optimizer = OffloadedAdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2,
                                   max_norm=1.0)
        torch.manual_seed(3)
        run = []
        for step in range(3):
            tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(step))
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            run.append(loss.item())
        losses.append(run)
        models.append(model)
    assert losses[0] == losses[1]
    assert losses[0][2] != losses[0][0]
    assert same(*models)
    assert on_device(optimizer) <= size // 4
    # State is that of 96 adapters, each of one leaf of 4,096 parameters.
    (shard,) = optimizer._shards
    held = {what: size for tier, what, size in shard.trainer.memory() if tier == "host"}
    assert held["frozen parameters"] > 0.9 * size
    assert held["optimizer state"] == 96 * 4096 * 12


def test_blocks_may_be_recomputed_and_evaluated():
    resident, resident_optimizer = make(recomputes=True)
    streamed, optimizer = make("400KB", recomputes=True)
    for step in range(3):
        assert train(resident, resident_optimizer, [step]) == train(streamed, optimizer, [step])
        with torch.no_grad():
            assert resident(batch(7)) == streamed(batch(7))
    assert same(resident, streamed)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_block_may_recompute_itself(reentrant):
    models = []
    for budget in (None, "600KB"):
        torch.manual_seed(1)
        model = BlockModel(Recomputing, 8, 128)
        for block in model.blocks:
            block.reentrant = reentrant
        if budget is not None:
            offload_model(model, budget)
        optimizer = OffloadedAdamW(model.parameters(), lr=1e-2, max_norm=1.0)
        models.append((train(model, optimizer, range(4)), model))
    (expected, resident), (found, streamed) = models
    assert found == expected and same(resident, streamed)
    # Each pass has computed on the slots of the device, and none where a block waits.
    used = [address for block in streamed.blocks for address in block.seen]
    assert len(used) == 4 * 2 * 8 and len(set(used)) <= 3
    assert not set(used) & {block.inner.weight.data_ptr() for block in streamed.blocks}


def test_the_state_dict_is_that_of_the_model_at_any_time():
    resident, resident_optimizer = make()
    streamed, optimizer = make("400KB")
    saved = copy.deepcopy(streamed.state_dict())
    train(resident, resident_optimizer, range(2))
    train(streamed, optimizer, range(2))
    streamed.load_state_dict(saved)
    resident.load_state_dict(saved)
    assert train(resident, resident_optimizer, range(2, 4)) == train(streamed, optimizer,
                                                                     range(2, 4))
    assert same(resident, streamed)


def test_goes_on_after_a_forward_pass_that_failed():
    resident, resident_optimizer = make()
    streamed, optimizer = make("400KB")
    for model in (resident, streamed):
        with pytest.raises(FloatingPointError):
            model(torch.full((5, 4), float("nan")))
        model(batch(1))  # of which nobody wants gradients
    assert train(resident, resident_optimizer, range(3)) == train(streamed, optimizer, range(3))
    assert same(resident, streamed)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_llama_of_transformers_with_state_on_disk(tmp_path, deferred):
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=6,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    losses = []
    for streamed in (False, True):
        torch.manual_seed(2)
        model = LlamaForCausalLM(config)
        if streamed:
            offload_model(model, "200KB")
        optimizer = OffloadedAdamW(model.parameters(), lr=1e-3, max_norm=1.0,
                                   nvme=[tmp_path],
                                   deferred=model if deferred and streamed else None)
        run = []
        for step in range(3):
            tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(step))
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            run.append(loss.item())
        losses.append(run)
    assert losses[0] == losses[1]


def test_says_what_does_not_fit_and_what_is_missing():
    model = model_of_blocks()
    offload_model(model, "400KB")
    with pytest.raises(spillway.InvalidArgumentError, match="make an optimizer"):
        model(batch(0))
    with pytest.raises(spillway.InvalidArgumentError, match="already"):
        offload_model(model, "400KB")
    with pytest.raises(spillway.InvalidArgumentError, match="no blocks were found"):
        offload_model(torch.nn.Linear(3, 3), "400KB")
    with pytest.raises(spillway.DoesNotFitError, match="the largest unit has"):
        make("10KB")
    some = model_of_blocks()
    offload_model(some, "400KB")
    with pytest.raises(spillway.NotSupportedError, match="blocks.0.outer of block 0 needs"):
        OffloadedAdamW(some.head.parameters())
    frozen = freeze(model_of_blocks())
    offload_model(frozen, "700KB")
    optimizer = OffloadedAdamW(frozen.parameters())
    frozen.blocks[2].inner.weight.requires_grad_(True)
    with pytest.raises(spillway.NotSupportedError, match="is trained since the optimizer was made"):
        train(frozen, optimizer, [0])
