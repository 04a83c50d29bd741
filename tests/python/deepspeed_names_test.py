"""The table of docs/deepspeed.md has every public name of DeepSpeed's engine, and what it says of
them is so."""
import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import pathlib
import re

import pytest
import torch

import spillway
import spillway.torch as deepspeed
from spillway.torch._deepspeed_names import ENGINE, MODULE

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/deepspeed.md"
ROW = re.compile(r"^\| (`.*`) \| (works|differs|refused) \| (.*) \|$", re.MULTILINE)
CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "gradient_clipping": 0.5,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.8, 0.99]}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
          "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}


def names_of_deepspeed():
    """Public methods and attributes of its engine, from the source, which takes long to import."""
    assert importlib.metadata.version("deepspeed") == "0.19.8", "the page says another version"
    root = pathlib.Path(importlib.util.find_spec("deepspeed").origin).parent
    tree = ast.parse((root / "runtime/engine.py").read_text())
    engine = next(node for node in tree.body
                  if isinstance(node, ast.ClassDef) and node.name == "DeepSpeedEngine")
    names = {node.name for node in engine.body if isinstance(node, ast.FunctionDef)}
    names |= {node.attr for node in ast.walk(engine)
              if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
              and isinstance(node.value, ast.Name) and node.value.id == "self"}
    return {name for name in names if not name.startswith("_")}


def rows():
    """Names, by what the page says of them."""
    said = {"works": [], "differs": [], "refused": []}
    for names, verdict, _ in ROW.findall(PAGE.read_text()):
        said[verdict] += re.findall(r"`(\w+)`", names)
    return said


def make(**more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model.answer = 42
    return deepspeed.initialize(model=model, config={**CONFIG, **more})[0]


def test_the_page_has_every_name_of_deepspeeds_engine_once():
    said = [name for names in rows().values() for name in names]
    assert len(said) == len(set(said))
    assert set(said) == names_of_deepspeed() and len(said) > 200


def test_what_works_is_there_and_what_is_refused_says_why():
    engine, said = make(), rows()
    for name in said["works"] + said["differs"]:
        assert hasattr(engine, name), name
    assert set(said["refused"]) == set(ENGINE)
    for name in said["refused"]:
        assert not hasattr(engine, name)
        with pytest.raises(spillway.NotSupportedError, match=rf"engine\.{name} of DeepSpeed") as e:
            getattr(engine, name)
        assert len(str(e.value).split(": ", 1)[1]) > 20, "a reason or a remedy"
    for name in MODULE:
        with pytest.raises(spillway.NotSupportedError, match=rf"deepspeed\.{name} of DeepSpeed"):
            getattr(deepspeed, name)
    for call in (lambda: deepspeed.zero.register_external_parameter,
                 lambda: deepspeed.comm.log_summary,
                 lambda: deepspeed.get_accelerator().memory_allocated):
        with pytest.raises(spillway.NotSupportedError, match="of DeepSpeed is not in Spillway"):
            call()


@pytest.mark.parametrize(("line", "words"), [
    ("from spillway.torch import PipelineModule", r"deepspeed\.PipelineModule.*a plain model"),
    ("from spillway.torch.comm import log_summary", r"comm\.log_summary.*use torch\.distributed"),
    ("from spillway.torch.zero import TiledLinear", r"zero\.TiledLinear.*leave it out")])
def test_an_import_of_a_refused_name_says_why(line, words):
    with pytest.raises(ImportError, match=words) as raised:
        exec(line, {})
    assert isinstance(raised.value, spillway.NotSupportedError)
    _, module, _, name = line.split()
    assert not hasattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match="cannot import name 'question'"):
        exec("from spillway.torch import question", {})


def test_other_names_are_those_of_the_model():
    engine = make()
    assert engine.answer == 42
    with pytest.raises(AttributeError, match="neither the engine nor its model, a Sequential, has"):
        engine.question  # noqa: B018


def test_settings_are_those_of_the_configuration():
    engine = make(steps_per_print=7)
    assert engine.get_batch_info() == (8, 4, 2)
    assert engine.get_mom() == [(0.8, 0.99)]
    assert (engine.optimizer_name(), engine.scheduler_name()) == ("adamw", "WarmupLR")
    assert engine.optimizer_params() == CONFIG["optimizer"]["params"]
    assert engine.scheduler_params() == {"warmup_num_steps": 4}
    assert engine.gradient_clipping() == 0.5 and engine.steps_per_print() == 7
    assert engine.zero_optimization() and engine.zero_optimization_stage() == 1
    assert engine.zero_offload_optimizer() == {"device": "cpu"}
    assert engine.zero_offload_param() is None
    assert engine.zero_cpu_offload() and not engine.zero_nvme_offload_optimizer()
    assert not engine.fp16_enabled() and not engine.bfloat16_enabled()
    assert engine.loss_scale() == engine.optimizer.cur_scale == 1
    assert engine.get_data_types() == (torch.float32, torch.float32)
    scaled = make(fp16={"enabled": True, "initial_scale_power": 5})
    assert scaled.fp16_enabled() and scaled.dynamic_loss_scale()
    assert scaled.initial_dynamic_scale() == scaled.loss_scale() == 32
    assert scaled.optimizer.cur_scale == scaled.optimizer.loss_scale == 32
    assert make(bf16={"enabled": True}).bfloat16_enabled()
    assert not make(fp16={"enabled": True, "loss_scale": 64}).dynamic_loss_scale()
    assert engine.flops_profiler_enabled() is False


def test_a_destroyed_engine_trains_no_more():
    engine = make()
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    engine.destroy()
    with pytest.raises(spillway.Error, match="close"):
        engine.optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))


def test_contexts_of_zero_and_comm_work_alone():
    with deepspeed.zero.Init(config_dict_or_path={}, dtype=torch.bfloat16, remote_device="cpu"):
        made = torch.nn.Linear(4, 4)
    assert made.weight.dtype == torch.bfloat16 and torch.nn.Linear(1, 1).weight.dtype.itemsize == 4
    with pytest.raises(spillway.NotSupportedError, match="remote_device of zero.Init is nvme"):
        deepspeed.zero.Init(remote_device="nvme")
    with deepspeed.zero.GatheredParameters(made.parameters(), modifier_rank=0):
        torch.nn.init.ones_(made.weight)
    assert float(made.weight.detach().sum()) == 16
    comm, values = deepspeed.comm, torch.arange(3.0)
    assert (comm.get_rank(), comm.get_world_size()) == (0, 1)
    gathered = [torch.zeros(3)]
    for call in (comm.barrier, functools.partial(comm.all_reduce, values),
                 functools.partial(comm.reduce, values, 0),
                 functools.partial(comm.broadcast, values, 0),
                 functools.partial(comm.all_gather, gathered, values)):
        assert call() is None
        work = call(async_op=True)
        assert work.wait() is True and work.is_completed()
    assert torch.equal(values, torch.arange(3.0)) and torch.equal(gathered[0], values)
    comm.destroy_process_group()
    device = deepspeed.get_accelerator()
    assert device.current_device_name() == device.device_name(3) == "cpu"
    assert device.is_bf16_supported() and device.communication_backend_name() == "gloo"


def test_data_of_an_engine_are_loaded_in_order_or_shuffled():
    engine = make()
    data = list(range(64))
    in_order = torch.cat(list(engine.deepspeed_io(data, route="eval"))).tolist()
    shuffled = torch.cat(list(engine.deepspeed_io(data))).tolist()
    assert in_order == data and shuffled != data and sorted(shuffled) == data
