"""A model of `meta` that takes its values from a checkpoint: the bits of one that from_pretrained
has loaded, whatever names it has, and what does not fit is named."""
import json
import struct

import pytest
import torch
from accelerate import init_empty_weights
from peft import LoraConfig, get_peft_model
from quantized_layers import Buffers
from safetensors.torch import save_file
from streamed_one_rank_test import group  # noqa: F401
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
)

import spillway
from spillway import CorruptDataError, InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedAdamW, load_checkpoint, offload_model

LLAMA = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
TIED = LlamaConfig(**{**LLAMA.to_dict(), "tie_word_embeddings": True})
GPT2 = GPT2Config(vocab_size=64, n_embd=64, n_layer=4, n_head=4, n_positions=32, resid_pdrop=0.0,
                  embd_pdrop=0.0, attn_pdrop=0.0)
BUDGET = "600KB"
STEPS = 5


def saved(folder, config=LLAMA, dtype=torch.bfloat16, **options):
    """A checkpoint, in shards unless the options say otherwise."""
    torch.manual_seed(1)
    kind = GPT2LMHeadModel if config is GPT2 else LlamaForCausalLM
    kind(config).to(dtype).save_pretrained(folder, **{"max_shard_size": "100KB", **options})
    return folder


def on_meta(config=LLAMA, dtype=torch.bfloat16):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def in_empty_weights(config=LLAMA, dtype=torch.bfloat16):
    with init_empty_weights():
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def of_transformers(folder, dtype=torch.bfloat16):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def adapted(model):
    torch.manual_seed(2)
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear",
                                            init_lora_weights=False))


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train(model, optimizer):
    model.train()
    found = []
    for step in range(STEPS):
        tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return found


def equal_models(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype and torch.equal(value, other[name]), name


def compare(loaded, expected, **options):
    """Trains both, offloaded."""
    found = []
    for model in (loaded, expected):
        offload_model(model, BUDGET, **options)
        optimizer = OffloadedAdamW(trained(model), lr=1e-2, max_norm=1.0)
        found.append(train(model, optimizer))
        optimizer.close()
    assert all(map(torch.equal, *found)) and found[0][0] != found[0][-1]
    equal_models(loaded, expected)


@pytest.mark.parametrize("build", [on_meta, in_empty_weights])
@pytest.mark.parametrize("config", [LLAMA, TIED, GPT2], ids=["llama", "tied", "gpt2"])
def test_training_has_the_bits_of_a_model_that_transformers_has_loaded(tmp_path, build, config):
    folder = saved(tmp_path, config)
    loaded, expected = load_checkpoint(build(config), folder), of_transformers(folder)
    equal_models(loaded, expected)
    for (name, one), (_, other) in zip(loaded.named_buffers(), expected.named_buffers(),
                                       strict=True):
        assert torch.equal(one, other), name  # frequencies, which are in no checkpoint
    is_tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert is_tied == (config is not LLAMA)
    compare(loaded, expected)


@pytest.mark.parametrize("home", ["host", "nvme"])
def test_adapters_train_with_the_bits_of_a_base_that_transformers_has_loaded(tmp_path, home):
    folder = saved(tmp_path / "base")
    loaded, expected = adapted(load_checkpoint(on_meta(), folder)), adapted(of_transformers(folder))
    compare(loaded, expected, frozen=home, frozen_nvme=[tmp_path] if home == "nvme" else [])


@pytest.mark.parametrize("nvme", [False, True])
@pytest.mark.parametrize("kept, built", [(torch.float32, torch.bfloat16),
                                         (torch.bfloat16, torch.float32),
                                         (torch.float32, torch.float16)])
def test_another_type_is_converted_as_by_transformers(tmp_path, kept, built, nvme):
    folder = saved(tmp_path, dtype=kept)
    loaded = load_checkpoint(on_meta(dtype=built), folder, nvme=tmp_path if nvme else ())
    expected = of_transformers(folder, built)
    equal_models(loaded, expected)
    if built != torch.float16:
        compare(loaded, expected)


def test_ranks_take_it_from_their_files(tmp_path, group):  # noqa: F811
    folder = saved(tmp_path)
    found = []
    for model in (load_checkpoint(on_meta(), folder), of_transformers(folder)):
        offload_model(model, BUDGET)
        optimizer = OffloadedAdamW(model.parameters(), lr=1e-2, process_group=group)
        found.append(train(model, optimizer))
        optimizer.close()
    assert all(map(torch.equal, *found)) and found[0][0] != found[0][-1]


def test_what_is_written_stays_in_the_process(tmp_path):
    folder = saved(tmp_path)
    one, other = (load_checkpoint(on_meta(), folder) for _ in range(2))
    with torch.no_grad():
        one.lm_head.weight.add_(1)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    equal_models(other, of_transformers(folder))


# Names.

def stored(folder):
    """The tensors of a model, to be saved under other names."""
    model = of_transformers(saved(folder))
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_one_file_and_any_model_of_torch(tmp_path):
    def make():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4),
                                   torch.nn.LSTM(5, 6))

    torch.manual_seed(1)
    expected = make()
    expected[1].running_mean.uniform_()
    save_file(expected.state_dict(), tmp_path / "any.safetensors")
    for context in (torch.device("meta"), init_empty_weights()):
        with context:
            model = make()
        model[0].weight.requires_grad_(False)
        model[0].weight.note = "kept"
        load_checkpoint(model, tmp_path / "any.safetensors")
        equal_models(model, expected)
        assert not model[0].weight.requires_grad and model[0].bias.requires_grad
        assert model[0].weight.note == "kept"
        x = torch.ones(2, 1, 5)
        assert torch.equal(model[2](x)[0], expected[2](x)[0])  # an LSTM has its weights twice


def test_the_prefix_of_a_body_may_be_there_or_not(tmp_path):
    torch.manual_seed(1)
    body = GPT2Model(GPT2)
    body.save_pretrained(tmp_path)  # without "transformer."
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2)
    load_checkpoint(model, tmp_path)
    equal_models(model.transformer, body)
    model.save_pretrained(tmp_path / "whole")
    with torch.device("meta"):
        again = GPT2Model(GPT2)
    equal_models(load_checkpoint(again, tmp_path / "whole"), body)


def test_names_of_adapters_are_left_out_and_adapters_stay(tmp_path):
    folder = saved(tmp_path)
    model = get_peft_model(on_meta(), LoraConfig(r=2, target_modules=["q_proj"],
                                                 modules_to_save=["lm_head"]))
    for module in model.modules():
        for adapter in (getattr(module, name, None) for name in ("lora_A", "lora_B")):
            if isinstance(adapter, torch.nn.ModuleDict):
                adapter.to_empty(device="cpu")
                torch.nn.init.ones_(adapter.default.weight)
    load_checkpoint(model, folder)
    expected = of_transformers(folder)
    layer = model.base_model.model.model.layers[1].self_attn.q_proj
    assert torch.equal(layer.base_layer.weight, expected.model.layers[1].self_attn.q_proj.weight)
    assert torch.equal(layer.lora_A.default.weight, torch.ones(2, 64))
    head = model.base_model.model.lm_head
    assert torch.equal(head.modules_to_save.default.weight, expected.lm_head.weight)
    assert torch.equal(head.original_module.weight, expected.lm_head.weight)
    assert head.modules_to_save.default.weight is not head.original_module.weight


def test_adapters_that_have_gone_to_meta_are_named(tmp_path):
    model = get_peft_model(on_meta(), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(InvalidArgumentError, match=r"missing: base_model.*lora_A.default.weight"):
        load_checkpoint(model, saved(tmp_path))


def test_buffers_that_older_checkpoints_have_are_left_out(tmp_path):
    tensors = stored(tmp_path / "new")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, tmp_path / "old.safetensors")
    model = load_checkpoint(on_meta(), tmp_path / "old.safetensors")
    equal_models(model, of_transformers(tmp_path / "new"))


def test_a_tied_weight_may_be_stored_twice_if_both_are_equal(tmp_path):
    tensors = stored(tmp_path / "new")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "equal.safetensors")
    model = load_checkpoint(on_meta(TIED), tmp_path / "equal.safetensors")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tensors["lm_head.weight"][3, 4] += 1
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(InvalidArgumentError, match="tied in the model and different: "
                       "model.embed_tokens.weight and lm_head.weight"):
        load_checkpoint(on_meta(TIED), tmp_path / "other.safetensors")


def test_layers_of_a_quantizer_whose_tensors_are_buffers(tmp_path):
    def make(width):
        return torch.nn.Sequential(*(Buffers(torch.randn(width, width)) for _ in range(2)))

    torch.manual_seed(1)
    expected = make(16)
    save_file(expected.state_dict(), tmp_path / "codes.safetensors")
    with torch.device("meta"):
        model = make(16)
    equal_models(load_checkpoint(model, tmp_path / "codes.safetensors"), expected)


# What does not fit.

def test_all_that_does_not_fit_is_named_at_once(tmp_path):
    tensors = stored(tmp_path / "whole")
    for name in ("model.norm.weight", "model.layers.2.mlp.up_proj.weight"):
        del tensors[name]
    tensors["model.norm.bias"] = torch.ones(3)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:7].clone()
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(128, 64, dtype=torch.int32)
    save_file(tensors, tmp_path / "damaged.safetensors")
    model = on_meta()
    with pytest.raises(InvalidArgumentError) as it:
        load_checkpoint(model, tmp_path / "damaged.safetensors")
    for part in ("damaged.safetensors does not fit the model: ",
                 "missing: model.layers.2.mlp.up_proj.weight, model.norm.weight; ",
                 "not of the model: model.norm.bias; ",
                 "of another shape: lm_head.weight, [7, 64] and not [64, 64]; ",
                 "of a type that is not converted: model.layers.0.mlp.up_proj.weight, I32 and not "
                 "torch.bfloat16"):
        assert part in str(it.value), part
    assert all(parameter.is_meta for parameter in model.parameters())


def test_long_lists_of_names_are_cut(tmp_path):
    others = {f"other.{number}": torch.ones(1) for number in range(50)}
    save_file(others, tmp_path / "o.safetensors")
    with pytest.raises(InvalidArgumentError, match="other.26 and 30 more"):
        load_checkpoint(on_meta(), tmp_path / "o.safetensors")


class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.arange(2.0), persistent=False)


def test_buffers_that_nobody_can_make_are_named(tmp_path):
    save_file({"0.weight": torch.ones(2)}, tmp_path / "one.safetensors")
    with torch.device("meta"):
        model = torch.nn.Sequential(Rotary())
    with pytest.raises(InvalidArgumentError, match="only the program can make .*: 0.table"):
        load_checkpoint(model, tmp_path / "one.safetensors")
    model[0].table = torch.arange(2.0)
    load_checkpoint(model, tmp_path / "one.safetensors")
    assert torch.equal(model[0].table, torch.arange(2.0)) and not model[0].weight.is_meta


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    saved(tmp_path, max_shard_size="1GB")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", struct.pack("<Q", 1 << 40) + whole[8:]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match="model.safetensors"):
            load_checkpoint(on_meta(), tmp_path)
    file.unlink()
    with pytest.raises(InvalidArgumentError, match="has neither model.safetensors nor"):
        load_checkpoint(on_meta(), tmp_path)
    with pytest.raises(InvalidArgumentError, match="nvme .*nowhere is not a directory"):
        load_checkpoint(on_meta(), saved(tmp_path), nvme=tmp_path / "nowhere")


def test_a_model_without_values_is_not_offloaded(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"model.embed_tokens.weight is on meta.*"
                       r"load_checkpoint\(model"):
        offload_model(on_meta(), BUDGET)


def test_weights_that_a_quantizer_makes_are_refused(tmp_path):
    bnb = pytest.importorskip("bitsandbytes")
    save_file({"0.weight": torch.ones(4, 4)}, tmp_path / "one.safetensors")
    with torch.device("meta"):
        model = torch.nn.Sequential(bnb.nn.Linear4bit(4, 4, bias=False))
    with pytest.raises(NotSupportedError, match="0.weight is a Params4bit on meta"):
        load_checkpoint(model, tmp_path / "one.safetensors")


# Sizes and places.

def test_a_file_may_be_larger_than_memory(tmp_path):
    elements = 1 << 40  # 2 TiB, all but the last of which nobody writes
    header = json.dumps({"0.weight": {"dtype": "BF16", "shape": [elements],
                                      "data_offsets": [0, 2 * elements]}}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "large.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + 2 * elements)
        except OSError:
            pytest.skip("this filesystem has no files of 2 TiB")
        file.seek(-2, 2)
        file.write(b"\x80\x3f")
    model = torch.nn.Sequential(torch.nn.Module())
    model[0].weight = torch.nn.Parameter(torch.empty(elements, dtype=torch.bfloat16, device="meta"))
    load_checkpoint(model, path)
    assert model[0].weight[-1] == 1 and model[0].weight[0] == 0


def test_a_tensor_whose_place_does_not_suit_its_type_is_copied(tmp_path):
    header = json.dumps({"0.a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                         "0.b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
                         "0.c": {"dtype": "F32", "shape": [0], "data_offsets": [9, 9]}}).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\7" + struct.pack("<2f", 1.5, -2))
    model = torch.nn.Sequential(torch.nn.Module())
    for name, shape, dtype in (("a", 1, torch.uint8), ("b", 2, torch.float32),
                               ("c", 0, torch.float32)):
        model[0].register_buffer(name, torch.empty(shape, dtype=dtype, device="meta"))
    load_checkpoint(model, path)
    assert model[0].a.tolist() == [7] and model[0].b.tolist() == [1.5, -2]
    assert model[0].b.data_ptr() % 4 == 0 and not model[0].c.is_meta


def test_a_full_drive_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(spillway.IoError, match="has no room for .*No space left on device"):
        load_checkpoint(on_meta(), saved(tmp_path, dtype=torch.float32), nvme=tmp_path)
