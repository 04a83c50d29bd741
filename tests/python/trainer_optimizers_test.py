"""Names of TrainingArguments.optim: each is an optimizer of ours, or refused with what to use."""
import functools
import warnings

import pytest
import torch
import transformers
from transformers.training_args import OptimizerNames

import spillway
from spillway.huggingface import Offloaded, SpillwayTrainer
from spillway.torch import OffloadedAdagrad, OffloadedAdamW, OffloadedLion, OffloadedSGD

MAPPED = {
    "adamw_torch": OffloadedAdamW, "adamw_torch_fused": OffloadedAdamW,
    "adamw_torch_8bit": OffloadedAdamW, "adamw_bnb_8bit": OffloadedAdamW,
    "adamw_8bit": OffloadedAdamW, "paged_adamw_8bit": OffloadedAdamW,
    "paged_adamw_32bit": OffloadedAdamW, "lion_32bit": OffloadedLion, "lion_8bit": OffloadedLion,
    "paged_lion_8bit": OffloadedLion, "adagrad": OffloadedAdagrad, "sgd": OffloadedSGD}


def make(tmp_path, name, dtype=torch.bfloat16, optim_args=None, **options):
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[],
                                          optim="adamw_torch", adam_beta1=0.8, adam_epsilon=1e-6,
                                          learning_rate=0.125, optim_args=optim_args)
    args.optim = name  # without the libraries that the arguments look for
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(dtype)
    return SpillwayTrainer(model=model, args=args, spillway=options).create_optimizer()


@pytest.mark.parametrize("name, kind", MAPPED.items())
def test_names_that_are_mapped(tmp_path, name, kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = make(tmp_path, name)
    said = [str(each.message) for each in caught if f'optim "{name}"' in str(each.message)]
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.125
    if kind is OffloadedAdamW:
        assert group["betas"] == (0.8, 0.999) and group["eps"] == 1e-6
    if "8bit" in name:
        assert optimizer._options["state_format"] == "int8"
        assert len(said) == 1 and "int8 with an fp32 scale for every 256" in said[0]
    else:
        assert optimizer._options["state_format"] == "fp32"
        assert len(said) == ("paged" in name)


@pytest.mark.parametrize("name, words", [
    ("adamw_torch_4bit", "int8"), ("adafactor", "int8"), ("galore_adamw_8bit", "int8"),
    ("adamw_anyprecision", "bf16"), ("rmsprop_bnb", "adamw_torch"), ("ademamix", "adamw_torch"),
    ("schedule_free_adamw", "adamw_torch"), ("adamw_torch_9bit", "adamw_torch"),
    ("stable_adamw", "adamw_torch")])
def test_names_that_are_refused_name_what_to_use(tmp_path, name, words):
    with pytest.raises(spillway.NotSupportedError, match=f'optim is "{name}".*use .*{words}'):
        make(tmp_path, name)


def test_every_name_of_transformers_is_mapped_or_refused(tmp_path):
    for name in OptimizerNames:
        try:
            make(tmp_path, name)
        except spillway.NotSupportedError as error:
            assert f'optim is "{name.value}"' in str(error)


def test_options_come_first_and_float32_models_are_told(tmp_path):
    with pytest.warns(UserWarning, match='state_format="bf16" of the options'):
        optimizer = make(tmp_path, "adamw_8bit", state_format="bf16")
    assert optimizer._options["state_format"] == "bf16"
    with pytest.raises(spillway.InvalidArgumentError, match="bfloat16"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(tmp_path, "adamw_8bit", torch.float32)


def test_optim_args_are_taken_or_refused(tmp_path):
    optimizer = make(tmp_path, "sgd", optim_args="momentum=0.9")
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert make(tmp_path, "adagrad", optim_args="eps=0.5").param_groups[0]["eps"] == 0.5
    for name, said in (("adamw_torch", "beta1=0.5"), ("sgd", "momentun=0.9"),
                       ("sgd", "momentum=high")):
        with pytest.raises(spillway.InvalidArgumentError, match=f"optim_args has {said}"):
            make(tmp_path, name, optim_args=said)


def make_of_deepspeed(tmp_path, configuration, **arguments):
    fp16 = arguments.pop("fp16", False)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), **{"use_cpu": True, "report_to": [], **arguments})
    args.fp16 = fp16  # accelerate would look for a GPU
    trainer = SpillwayTrainer(model=torch.nn.Linear(8, 8), args=args, spillway={
        "gradient_accumulation_steps": "auto", **configuration})
    return trainer.create_optimizer()


def optimizer_section(name, **parameters):
    return {"optimizer": {"type": name, "params": {"lr": "auto", **parameters}}}


@pytest.mark.parametrize("name, optim, kind, more", [
    ("AdamW", "adamw_torch", OffloadedAdamW, {"eps": "auto"}),
    ("Adam", "adamw_torch", OffloadedAdamW, {}), ("Lion", "lion_32bit", OffloadedLion, {}),
    ("Adagrad", "adagrad", OffloadedAdagrad, {"eps": 1e-10}),
    ("SGD", "sgd", OffloadedSGD, {"momentum": 0.5}), ("SGD", "sgd", OffloadedSGD, {})])
def test_an_optimizer_of_deepspeed_is_the_one_that_the_arguments_name(tmp_path, name, optim, kind,
                                                                      more):
    optim_args = f"momentum={more['momentum']}" if "momentum" in more else None
    optimizer = make_of_deepspeed(tmp_path, optimizer_section(name, **more), optim=optim,
                                  optim_args=optim_args)
    assert type(optimizer) is kind
    assert optimizer.param_groups[0].get("momentum", 0) == more.get("momentum", 0)
    other = "sgd" if optim != "sgd" else "adamw_torch"
    with pytest.raises(spillway.InvalidArgumentError,
                       match=f'optimizer.type is {name}.*optim="{optim}"'):
        make_of_deepspeed(tmp_path, optimizer_section(name), optim=other)


@pytest.mark.parametrize("configuration, arguments, words", [
    (optimizer_section("SGD", momentum=0.9), {"optim": "sgd"}, "momentum is 0.9.*say 0.0"),
    (optimizer_section("Adagrad", eps=1e-8), {"optim": "adagrad"}, "eps is 1e-08.*say 1e-10"),
    (optimizer_section("Adam", adam_w_mode=False), {}, "params.adam_w_mode is false"),
    (optimizer_section("AdamW", bias_correction=False), {}, "params.bias_correction is false"),
    ({"spillway": {"decay": "all"}}, {}, "spillway.decay is all"),
    ({"spillway": {"compute": "bf16"}}, {}, "spillway.compute is bf16"),
    ({"spillway": {"device_memory": "1MB"}}, {}, "spillway.device_memory is 1MB.*offload_model"),
    ({"pipeline": {"stages": 2}}, {}, "pipeline.stages is 2"),
    ({"fp16": {"enabled": "auto", "loss_scale": 128}}, {"fp16": True}, "fp16.loss_scale is 128"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, {},
     "no nvme_path")])
def test_what_the_trainer_has_not_of_a_configuration_is_refused(tmp_path, configuration, arguments,
                                                                words):
    with pytest.raises(spillway.Error, match=words):
        make_of_deepspeed(tmp_path, configuration, **arguments)


def schedule_section(kind, **parameters):
    return {"scheduler": {"type": kind, "params": {"warmup_num_steps": "auto", **parameters}}}


#: What transformers' page on DeepSpeed says that each means: the rate of WarmupLR stays constant.
SAME = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


@pytest.mark.parametrize("kind", [*SAME, "OneCycle"])
def test_a_schedule_of_deepspeed_is_the_one_that_the_arguments_name(tmp_path, kind):
    for said in ("linear", *SAME.values(), "polynomial"):
        if said == SAME.get(kind):
            make_of_deepspeed(tmp_path, schedule_section(kind), lr_scheduler_type=said)
            continue
        remedy = f'set lr_scheduler_type="{SAME[kind]}", or leave' if kind in SAME else "leave"
        with pytest.raises(spillway.InvalidArgumentError,
                           match=f"scheduler.type is {kind}.* is {said}: {remedy}"):
            make_of_deepspeed(tmp_path, schedule_section(kind), lr_scheduler_type=said)


def test_a_section_that_is_null_is_absent(tmp_path):
    null = dict.fromkeys(("optimizer", "scheduler", "zero_optimization", "fp16"))
    assert type(make_of_deepspeed(tmp_path, null)) is OffloadedAdamW


def test_a_warm_up_of_another_form_is_noted(tmp_path):
    def notes(**parameters):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make_of_deepspeed(tmp_path, schedule_section("WarmupDecayLR", **parameters),
                              warmup_steps=5)
        return [each for each in caught if "by the logarithm" in str(each.message)]

    assert [note.filename for note in notes()] == [__file__]
    assert not notes(warmup_type="linear")


def test_notes_on_a_configuration_are_shown(tmp_path):
    with pytest.warns(UserWarning) as caught:
        make_of_deepspeed(tmp_path, {
            "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 8,
                     "hysteresis": 2},
            "zero_optimization": {"stage": 2, "overlap_comm": True}}, fp16=True)
    said = "\n".join(str(each.message) for each in caught)
    assert "fp16.initial_scale_power, fp16.hysteresis: not used: torch's GradScaler" in said
    assert "zero_optimization.overlap_comm: not needed" in said
    assert "absent" not in said
    assert {each.filename for each in caught if ": not " in str(each.message)} == {__file__}


def test_what_the_trainer_does_not_need_is_noted(tmp_path):
    with pytest.warns(UserWarning, match=r"spillway.steps, offload_param.device: not needed"):
        make_of_deepspeed(tmp_path, {"spillway": {"steps": 3, "decay": "matrices"},
                                     "zero_optimization": {"stage": 3,
                                                           "offload_param": {"device": "cpu"}}})


class OtherClass(transformers.Trainer):
    @staticmethod
    def get_optimizer_cls_and_kwargs(args, model=None):
        return torch.optim.AdamW, {"lr": 2e-3}


class OtherOptimizer(transformers.Trainer):
    def create_optimizer(self, *arguments, **keywords):
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return self.optimizer


class Plain(transformers.Trainer):
    pass


@pytest.mark.parametrize("base, more, words", [
    (OtherClass, {}, "OtherClass.get_optimizer_cls_and_kwargs"),
    (OtherOptimizer, {}, "OtherOptimizer.create_optimizer"),
    (Plain, {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 2e-3})},
     "optimizer_cls_and_kwargs is given")])
def test_a_choice_that_is_not_of_the_arguments_is_refused(tmp_path, base, more, words):
    def trainer(**keywords):
        return type("Mine", (Offloaded, base), {})(
            model=model, args=transformers.TrainingArguments(
                output_dir=str(tmp_path), use_cpu=True, report_to=[]), **keywords)

    model = torch.nn.Linear(8, 8)
    with pytest.raises(spillway.NotSupportedError, match=f"{words}.*optim.*optimizers="):
        trainer(**more).create_optimizer()
    optimizer = OffloadedAdamW(model.parameters(), accumulation_steps=None)
    assert trainer(optimizers=(optimizer, None)).create_optimizer() is optimizer


@pytest.mark.parametrize("optimizer, arguments, more, words", [
    (torch.optim.AdamW, {}, {}, r"optimizer AdamW, whose.*optim.*OffloadedAdamW\("),
    (OffloadedAdamW, {}, {"spillway": {"nvme": ["/disk"]}}, "spillway= is given beside.*leave"),
    (OffloadedAdamW, {}, {"spillway": {"zero_optimization": {"stage": 2}}}, "spillway= is given"),
    (functools.partial(OffloadedAdamW, max_norm=0.5), {}, {}, "is 0.5, and max_grad_norm .* 1.0"),
    (functools.partial(OffloadedAdamW, max_norm=0.5), {"max_grad_norm": 0.0}, {}, "is 0.5.* 0"),
    (None, {"deepspeed": {"zero_optimization": {"stage": 2}}}, {}, "DeepSpeed is on.*spillway=")])
def test_an_optimizer_beside_other_wishes_is_refused(tmp_path, optimizer, arguments, more, words):
    model = torch.nn.Linear(8, 8)
    if optimizer is not None:
        more = {"optimizers": (optimizer(model.parameters()), None), **more}
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    for key, value in arguments.items():
        setattr(args, key, value)
    with pytest.raises(spillway.InvalidArgumentError, match=words):
        SpillwayTrainer(model=model, args=args, **more)


def test_a_trainer_that_chooses_nothing_has_the_optimizer_of_the_arguments(tmp_path):
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])

    class Mine(Offloaded, Plain):
        def create_optimizer(self, *arguments):
            return super().create_optimizer(*arguments)

    for kind in (SpillwayTrainer, Mine):
        trainer = kind(model=torch.nn.Linear(8, 8), args=args)
        assert type(trainer.create_optimizer()) is OffloadedAdamW
