"""A small Llama that bitsandbytes, torchao or HQQ has quantized, with adapters of PEFT, streamed:
the bits of one that stays."""
import pytest
import torch
from peft import LoraConfig, get_peft_model
from quantized_test import equal, on_device
from transformers import LlamaConfig, LlamaForCausalLM

import spillway.torch
from spillway import InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedAdamW, offload_model

STEPS = 5
CONFIG = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=6,
                     num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32)


def llama(dtype):
    torch.manual_seed(1)
    return LlamaForCausalLM(CONFIG).to(dtype)


def replaced(model, make):
    """Replaces the linear layers of blocks."""
    for layer in model.model.layers:
        for parent in list(layer.modules()):
            for name, linear in list(parent.named_children()):
                if type(linear) is torch.nn.Linear:
                    setattr(parent, name, make(linear))
    return model


def four_bits(nested=True, dtype=torch.float32, device="cpu"):
    """NF4 of bitsandbytes."""
    bnb = pytest.importorskip("bitsandbytes")

    def layer(linear):
        with torch.device(device):
            made = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=False,
                                     compress_statistics=nested, quant_type="nf4",
                                     compute_dtype=dtype)
        if device == "cpu":
            made.weight.data = linear.weight.data
        return made

    with torch.device(device):
        model = llama(dtype)
    model = replaced(model, layer).to(device)
    model.is_loaded_in_4bit = True  # for PEFT
    return model


def four_bits_plain():
    return four_bits(nested=False, dtype=torch.bfloat16)


def eight_bits():
    """LLM.int8() of bitsandbytes."""
    bnb = pytest.importorskip("bitsandbytes")

    def layer(linear):
        made = bnb.nn.Linear8bitLt(linear.in_features, linear.out_features, bias=False,
                                   has_fp16_weights=False, threshold=6.0)
        made.weight.data = linear.weight.data
        return made

    model = replaced(llama(torch.bfloat16), layer).to("cpu")
    model.is_loaded_in_8bit = True
    return model


def torchao_int8():
    quantization = pytest.importorskip("torchao.quantization")
    model = llama(torch.bfloat16)
    quantization.quantize_(model.model.layers, quantization.Int8WeightOnlyConfig())
    return model


def torchao_nf4():
    nf4 = pytest.importorskip("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")

    def layer(linear):
        linear.weight = torch.nn.Parameter(nf4.to_nf4(linear.weight.data), requires_grad=False)
        return linear

    return replaced(llama(torch.bfloat16), layer)


def hqq():
    quantize = pytest.importorskip("hqq.core.quantize")
    settings = quantize.BaseQuantizeConfig(nbits=4, group_size=64)

    def layer(linear):
        return quantize.HQQLinear(linear, settings, compute_dtype=torch.bfloat16, device="cpu")

    return replaced(llama(torch.bfloat16), layer)


BASES = [four_bits, four_bits_plain, eight_bits, torchao_int8, torchao_nf4, hqq]


def adapted(base, recompute=None, **options):
    torch.manual_seed(2)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"],
                                            init_lora_weights=False, **options))
    if recompute is not None:
        model.gradient_checkpointing_enable({"use_reentrant": recompute == "reentrant"})
        model.enable_input_require_grads()
    return model


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def budget_of(model):
    """Half of what is planned with plenty of room."""
    whole = spillway.torch.plan(model, trained(model), device_memory="1GB")
    return sum(whole.memory["host"][what] for what in ("frozen parameters",)) // 2 + (300 << 10)


def train(model, optimizer):
    found = []
    for step in range(STEPS):
        tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in trained(model))])
        optimizer.step()
        optimizer.zero_grad()
    return found


def compare(make, budget=None, **frozen):
    """Trains a model that stays, and a streamed one; returns the optimizer of that."""
    resident, streamed = make(), make()
    budget = budget or budget_of(streamed)
    offload_model(streamed, budget, **frozen)
    optimizer = OffloadedAdamW(trained(streamed), lr=1e-3, max_norm=1.0)
    resident.train(), streamed.train()
    expected = train(resident, OffloadedAdamW(trained(resident), lr=1e-3, max_norm=1.0))
    equal(expected, train(streamed, optimizer))
    assert expected[0][0] != expected[-1][0]
    equal([trained(resident)], [trained(streamed)])
    return streamed, optimizer, budget


@pytest.mark.parametrize("base, recompute", [
    *((base, recompute) for base in BASES for recompute in (None, "saved")),
    (four_bits, "reentrant"), (torchao_int8, "reentrant")])
def test_adapters_train_with_the_bits_of_a_base_that_stays(base, recompute):
    streamed, optimizer, budget = compare(lambda: adapted(base(), recompute))
    assert on_device(optimizer) <= budget
    (shard,) = optimizer._shards
    kept = {what: size for tier, what, size in shard.trainer.memory() if tier == "host"}
    # State is that of 36 adapters, each of a leaf of 4,096 parameters; the base is in its own bits.
    assert kept["optimizer state"] == 36 * 4096 * 12
    weights = sum(layer.in_features * layer.out_features for name, layer in
                  llama(torch.bfloat16).model.layers.named_modules()
                  if isinstance(layer, torch.nn.Linear))
    bits = {eight_bits: 8.5, torchao_int8: 8.5, four_bits_plain: 5.1}.get(base, 4.7)
    assert weights / 2 < kept["frozen parameters"] < weights * bits / 8 + 40_000


@pytest.mark.parametrize("base", [four_bits, eight_bits, hqq])
def test_adapters_train_with_the_same_bits_on_a_base_on_disk(tmp_path, base):
    _, optimizer, _ = compare(lambda: adapted(base(), "saved"), frozen="nvme", frozen_nvme=tmp_path)
    (shard,) = optimizer._shards
    kept = {(tier, what): size for tier, what, size in shard.trainer.memory()}
    assert ("host", "frozen parameters") not in kept
    assert shard.trainer.read == 2 * STEPS * kept["nvme", "frozen parameters"]


@pytest.mark.parametrize("base", [four_bits, eight_bits, torchao_int8])
def test_a_plan_counts_a_base_of_a_quantizer(base):
    model = adapted(base())
    budget = budget_of(model)
    plan = spillway.torch.plan(model, device_memory=budget)
    offload_model(model, budget)
    optimizer = OffloadedAdamW(trained(model))
    (shard,) = optimizer._shards
    taken = {"host": 0, "device": 0}
    for tier, _, size in shard.trainer.memory():
        taken[tier] += size
    assert (plan.host, plan.device) == (taken["host"], taken["device"])


def plain():
    return llama(torch.bfloat16)


@pytest.mark.parametrize("recompute", [None, "reentrant", "saved"])
@pytest.mark.parametrize("base", [plain, *BASES])
def test_a_plan_counts_that_each_block_is_read_twice_a_step(base, recompute):
    model = adapted(base(), recompute)
    budget = budget_of(model)
    plan = spillway.torch.plan(model, device_memory=budget)
    offload_model(model, budget)
    optimizer = OffloadedAdamW(trained(model))
    (shard,) = optimizer._shards
    moved = []
    for _ in range(3):
        before = shard.trainer.uploaded
        tokens = torch.zeros(1, 8, dtype=torch.int64)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        moved.append(shard.trainer.uploaded - before)
    blocks = sum(size for tier, what, size in shard.trainer.memory()
                 if tier == "host" and what in ("frozen parameters", "parameters"))
    assert plan.traffic["to_device"] >= 1.9 * blocks
    assert all(size == plan.traffic["to_device"] for size in moved), (moved, plan.traffic)


def test_a_base_on_meta_is_planned_as_what_it_will_be_quantized_to():
    real, meta = adapted(four_bits()), adapted(four_bits(device="meta"))
    there = spillway.torch.plan(real, device_memory="2MB")
    planned = spillway.torch.plan(meta, device_memory="2MB")
    assert planned.host == pytest.approx(there.host, rel=0.02)
    assert planned.device == pytest.approx(there.device, rel=0.02)


@pytest.mark.parametrize("base, dora", [(four_bits, True), (eight_bits, False)])
def test_dora_and_modules_to_save(base, dora):
    def make():
        return adapted(base(), use_dora=dora, modules_to_save=["lm_head"])

    _, optimizer, _ = compare(make)
    trains = sum(len(shard.trained_entries()) for shard in optimizer._shards)
    assert trains == 18 * (3 if dora else 2) + 1


def test_what_bitsandbytes_has_not_quantized_yet_is_refused():
    bnb = pytest.importorskip("bitsandbytes")
    model = torch.nn.Sequential(bnb.nn.Linear4bit(64, 64), bnb.nn.Linear4bit(64, 64))
    with pytest.raises(NotSupportedError, match="0.weight is a Params4bit that is not quantized"):
        offload_model(model, "1MB")
