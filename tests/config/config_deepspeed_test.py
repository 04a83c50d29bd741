"""Every key of DeepSpeed's configuration has an answer: it is used, noted as not needed, or refused
with a reason; none is unknown. Usage: config_deepspeed_test.py CONFIG_ANSWER"""

import inspect
import json
import logging
import subprocess
import sys

import pytest
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.ops.adagrad.cpu_adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import constants, lr_schedules
from deepspeed.runtime.activation_checkpointing import config as checkpointing
from deepspeed.runtime.config import (_REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS,
                                      DeepSpeedConfig, DeepSpeedConfigError, HybridEngineConfig)
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (DeepSpeedZeroOffloadOptimizerConfig,
                                                   DeepSpeedZeroOffloadParamConfig)
from deepspeed.utils import logger
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

CONFIG_ANSWER = sys.argv[-1]
logger.setLevel(logging.ERROR)

# Of the sections that Spillway reads, the class whose fields are their keys.
CLASSES = {
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
}
OPTIMIZERS = {"Adam": [FusedAdam, DeepSpeedCPUAdam], "AdamW": [FusedAdam, DeepSpeedCPUAdam],
              "Adagrad": [DeepSpeedCPUAdagrad], "Lion": [FusedLion, DeepSpeedCPULion]}


# Of the sections that it does not read, the class whose fields are their keys, where there is one.
FOREIGN = {
    "comms_logger": CommsLoggerConfig,
    "compile": CompileConfig,
    "hybrid_engine": HybridEngineConfig,
    "tensor_parallel": TPTrainingConfig,
    "tensor_parallel.tp": TPConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
}
# Sections that are checked as a whole before they are read, and those of features that DeepSpeed
# 0.19.8 has removed, whose keys it does not know.
WHOLE = {*CLASSES, *FOREIGN, "bfloat16", "optimizer", "scheduler", "zero_optimization"}
REMOVED = set(_REMOVED_TOP_LEVEL_CONFIG_KEYS)


class Recorder(dict):
    """A configuration that notes which keys it is asked for."""

    def __init__(self, content=()):
        super().__init__(content)
        self.asked = set()

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self):
        return self


def top_keys():
    recorder = Recorder({"train_batch_size": 1})
    DeepSpeedConfig(recorder)
    assert len(recorder.asked) > 50  # the recorder still sees what DeepSpeed asks for
    return sorted(recorder.asked | {"sequence_parallel_size"})


def asked_below(path):
    """The keys that DeepSpeed asks of the object at `path`."""
    recorder = Recorder({"enabled": True})
    config = with_key(".".join(path), None, {"train_batch_size": 1})
    place = config
    for section in path[:-1]:
        place[section].setdefault("enabled", True)
        place = place[section]
    place[path[-1]] = recorder
    try:
        DeepSpeedConfig(config)
    except Exception:  # whatever it does with an object where it wants a number
        pass
    return {key for key in recorder.asked if isinstance(key, str)}


def inner_keys():
    """Every key inside the sections that DeepSpeed reads one by one."""
    open_paths = [(key,) for key in top_keys() if key not in WHOLE | REMOVED]
    while open_paths:
        path = open_paths.pop()
        for key in sorted(asked_below(path)):
            yield ".".join((*path, key))
            if len(path) < 4:
                open_paths.append((*path, key))


def with_foreign_fields():
    for section, model in FOREIGN.items():
        for name, field in model.model_fields.items():
            for key in {name, field.alias or name}:
                yield f"{section}.{key}"


def default_of(field):
    value = field.get_default(call_default_factory=True)
    return value if value is None or isinstance(value, (bool, int, float, str)) else {}


def fields():
    for section, model in CLASSES.items():
        for name, field in model.model_fields.items():
            for key in {name, field.alias or name}:
                yield f"{section}.{key}", default_of(field)


def checkpointing_keys():
    for name, value in vars(checkpointing).items():
        if name.startswith("ACT_CHKPT_") and not name.endswith("DEFAULT"):
            yield f"activation_checkpointing.{value}", vars(checkpointing)[name + "_DEFAULT"]


def arguments(function, skip):
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.name not in skip:
            yield parameter.name, parameter.default


def parameters():
    skip = {"self", "params", "model_params", "optimizer"}
    for kind, classes in OPTIMIZERS.items():
        for each in classes:
            for name, value in arguments(each.__init__, skip):
                yield f"optimizer.params.{name}", value, {"optimizer": {"type": kind}}
    for kind in lr_schedules.VALID_LR_SCHEDULES:
        for name, value in arguments(getattr(lr_schedules, kind).__init__, skip):
            needed = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3} if kind == "OneCycle" else {}
            yield (f"scheduler.params.{name}", value,
                   {"scheduler": {"type": kind, "params": needed}})


def with_key(path, value, base):
    config = json.loads(json.dumps(base))
    *sections, key = path.split(".")
    place = config
    for section in sections:
        place = place.setdefault(section, {})
    place.setdefault(key, value)
    return config


def plain(value):
    if value is inspect.Parameter.empty or value is None:
        return None
    return list(value) if isinstance(value, tuple) else value


def all_keys():
    objects = {"optimizer", "scheduler", "fp16", "bf16", "bfloat16", "zero_optimization",
               "activation_checkpointing", "tensorboard", "csv_monitor", "wandb", "comet"}
    for key in top_keys():
        yield key, {} if key in objects else None, {}
    for path, value in [*fields(), *checkpointing_keys()]:
        yield path, value, {}
    for path in [*inner_keys(), *with_foreign_fields()]:
        yield path, None, {}
    for path, value, base in parameters():
        yield path, value, base
    for name, value in vars(constants).items():
        if name.startswith(("FP16_", "BFLOAT16_")) and isinstance(value, str) and \
                not name.endswith(("DEFAULT", "FORMAT")) and value != "bfloat16":
            yield f"{'fp16' if name.startswith('FP16') else 'bf16'}.{value}", None, {}


def answers(configs):
    lines = "".join(json.dumps(config) + "\n" for config in configs)
    done = subprocess.run([CONFIG_ANSWER], input=lines, capture_output=True, encoding="utf-8",
                          check=True)
    first, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    return set(first["options"]), rest


def test_every_key_has_an_answer():
    keys = list(all_keys())
    assert len(keys) > 150
    table, given = answers(with_key(path, plain(value), base) for path, value, base in keys)
    sections = {path.rpartition(".")[0] for path in table}
    unanswered = []
    for (path, value, _), answer in zip(keys, given, strict=True):
        error = answer.get("error", "")
        if error:
            assert value is not None, f"{path}: null is absent: {error}"
        known = not error or "unknown key" not in error
        used = path in table or any(each == path or each.startswith(path + ".")
                                    for each in sections)
        # What is said of a service counts where it is enabled.
        used = used or path.startswith(("wandb.", "comet."))
        noted = any(note.startswith(path) for note in answer.get("notes", []))
        if not known:
            unanswered.append(path)
        elif value is not None and not (used or noted or error or value is False):
            assert plain(value) in (0, 1, "", {}), f"{path} is taken without a word"
    assert not unanswered


@pytest.mark.parametrize("config", [
    {"tensor_parallel": {"tp_size": 2}}, {"tensor_parallel": {"enabled": False}},
    {"sequence_parallel_size": 2},
    {"expert_parallel": {"enabled": True}}, {"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}},
    {"weight_quantization": {"enabled": True}}, {"hybrid_engine": {"enabled": True}},
    {"nebula": {"enabled": True}}, {"bf16": {"bf16_optimizer_states": True}}])
def test_what_spillway_does_not_have_is_refused_with_a_reason(config):
    _, (answer,) = answers([config])
    assert "unknown" not in answer["error"]
    assert answer["error"].endswith(("remove it", "switch it off", "without it")), answer


@pytest.mark.parametrize("value", [False, 0, {}, {"enabled": False}, {"enabled": True}, 4])
def test_what_deepspeed_has_removed_is_refused_as_there(value):
    keys = [*_REMOVED_TOP_LEVEL_CONFIG_KEYS,
            *(f"zero_optimization.{key}" for key in _REMOVED_ZERO_CONFIG_KEYS)]
    assert len(keys) > 10
    _, given = answers(with_key(key, value, {}) for key in keys)
    for key, answer in zip(keys, given, strict=True):
        assert f"{key} is a feature that DeepSpeed 0.19.8 has removed" in answer["error"], answer
        with pytest.raises(DeepSpeedConfigError):
            DeepSpeedConfig(with_key(key, value, {"train_batch_size": 1}))


def test_keys_inside_of_sections_are_known_one_by_one():
    keys = {*inner_keys(), *with_foreign_fields()}
    assert {"aio.block_size", "flops_profiler.module_depth", "checkpoint.writer",
            "checkpoint.parallel_write.pipeline_stage", "timers.throughput.enabled",
            "compile.deepcompile", "comms_logger.prof_ops"} <= keys
    # The same key with a letter more is not known, unless every name may stand there.
    configs = [with_key(path + "x", None, {}) for path in sorted(keys)]
    _, given = answers(configs)
    free = [path for path, answer in zip(sorted(keys), given, strict=True)
            if "unknown key" not in answer.get("error", "")]
    assert len(keys) - len(free) > 150, free
    roots = ("activation_checkpointing.", "data_efficiency.data_", "checkpoint.writer.",
             "autotuning.model_info.", "autotuning.arg_mappings.", "tensor_parallel.tp.",
             "weight_quantization.", "datastates_ckpt.")
    assert all(path.startswith(roots) for path in free), free


def test_degrees_of_one_are_accepted():
    _, given = answers([{"tensor_parallel": {"autotp_size": 1}}, {"sequence_parallel_size": 1},
                        {"tensor_parallel": {"autotp_size": 0}},
                        {"tensor_parallel": {"enabled": True, "tp_size": 1}}, {"pipeline": {}}])
    assert all("error" not in answer for answer in given), given


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
