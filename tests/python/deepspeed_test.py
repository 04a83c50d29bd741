"""spillway.torch.initialize beside deepspeed.initialize: the same program, with the import
changed."""
import collections
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import types
import warnings

import pytest
import torch
import transformers

import spillway
from spillway.torch import OffloadedAdamW, initialize

LOOP = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/deepspeed_loop.py"


def run_loop(*arguments):
    done = subprocess.run([sys.executable, str(LOOP), *arguments], check=False,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]


def test_a_script_of_deepspeed_has_its_losses_and_rates(tmp_path):
    ours, theirs = run_loop("--save_dir", str(tmp_path)), run_loop("deepspeed")
    assert len(ours) == len(theirs) == 40
    assert run_loop("--load_dir", str(tmp_path), "--ckpt_id", "19") == ours[20:]
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine["step"] == reference["step"]
        assert mine["lr"] == pytest.approx(reference["lr"], abs=1e-15)
        # Feedback carries roundings of fp32 through 20 updates.
        assert mine["loss"] == pytest.approx(reference["loss"], rel=1e-4)


def make(folder, model=None, **more):
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(),
                                         torch.nn.Linear(32, 1))
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
              "zero_optimization": {"stage": 2, "offload_optimizer": {
                  "device": "nvme", "nvme_path": str(folder)}}, **more}
    return initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(engine, steps, spoilt=None, clip=0.0):
    for step in steps:
        for micro_batch in range(2):
            generator = torch.Generator().manual_seed(10 * step + micro_batch)
            x = torch.randn(4, 8, generator=generator).to(next(engine.parameters()).dtype)
            loss = engine(x).float().pow(2).mean()
            if step == spoilt:
                loss = loss * float("inf")
            engine.backward(loss)
            if clip and engine.is_gradient_accumulation_boundary():
                torch.nn.utils.clip_grad_norm_(engine.parameters(), clip)
            engine.step()
    engine.optimizer.synchronize()
    return [parameter.detach().clone() for parameter in engine.parameters()]


@pytest.mark.parametrize("precision", [
    {}, {"bf16": {"enabled": True}},
    {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 3,
              "hysteresis": 1}}])
def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path, precision):
    whole = make(tmp_path / "0", **precision)
    spoilt = 2 if "fp16" in precision else None
    expected = train(whole, range(8), spoilt)
    first = make(tmp_path / "1", **precision)
    train(first, range(4), spoilt)
    assert first.loss_scale() == (2**7 if spoilt else 1)
    first.save_checkpoint(tmp_path / "saved", client_state={"epoch": 3})
    second = make(tmp_path / "2", **precision)
    path, client_state = second.load_checkpoint(tmp_path / "saved")
    assert path == str(tmp_path / "saved/global_step4") and client_state == {"epoch": 3}
    assert all(torch.equal(a, b) for a, b in
               zip(train(second, range(4, 8), spoilt), expected, strict=True))
    assert second.global_steps == whole.global_steps == 8
    assert second.loss_scale() == whole.loss_scale()
    assert second.skipped_steps == whole.skipped_steps == (spoilt is not None)
    # A step that is skipped does not move the schedule.
    assert second.lr_scheduler.updates == whole.lr_scheduler.updates == 8 - whole.skipped_steps
    assert make(tmp_path / "3", **precision).load_checkpoint(tmp_path / "none") == (None, None)


def test_losses_of_micro_batches_are_averaged(tmp_path):
    sgd = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
    engine = make(tmp_path, optimizer=sgd, scheduler={"type": "Constant"})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    ours = train(engine, range(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for micro_batch in range(2):
            generator = torch.Generator().manual_seed(10 * step + micro_batch)
            (model(torch.randn(4, 8, generator=generator)).pow(2).mean() / 2).backward()
        optimizer.step()
    for mine, reference in zip(ours, model.parameters(), strict=True):
        assert torch.allclose(mine, reference, atol=1e-6)


class WithLoss(torch.nn.Module):
    """Returns its loss beside what that is made of, as models of transformers do."""

    def __init__(self, outputs=dict):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.outputs = torch.nn.Linear(8, 1), outputs

    def forward(self, x):
        y = self.layer(x)
        return self.outputs(loss=y.square().mean(), logits=y)


def norm_of_mean(weigh):
    """The norm of the mean of two losses' gradients, which torch alone computes."""
    model = WithLoss(types.SimpleNamespace)
    sum(weigh(model(torch.full((4, 8), x))) for x in (1.0, 2.0)).div(2).backward()
    return float(torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf))


@pytest.mark.parametrize("outputs", [
    dict, types.SimpleNamespace, collections.namedtuple("Outputs", "loss logits"),
    transformers.modeling_outputs.CausalLMOutput,
    dataclasses.make_dataclass("Outputs", ["loss", "logits"], frozen=True)])
@pytest.mark.parametrize("weigh", [lambda out: out.loss, lambda out: out.loss.mul_(2),
                                   lambda out: out.loss + out.logits.sum()])
def test_a_loss_of_the_programs_own_is_averaged_once_whatever_the_model_returns(
        tmp_path, outputs, weigh):
    engine = make(tmp_path, WithLoss(outputs))
    for x in (1.0, 2.0):
        found = engine(torch.full((4, 8), x))
        weigh(types.SimpleNamespace(**found) if outputs is dict else found).backward()
        engine.step()
    assert engine.get_global_grad_norm() == pytest.approx(norm_of_mean(weigh), rel=1e-5)


@pytest.mark.parametrize("more", [{}, {
    "gradient_accumulation_steps": 1, "fp16": {"enabled": True, "initial_scale_power": 8}}])
def test_a_loss_that_no_output_leads_to_is_refused(tmp_path, more):
    def run(backward):
        for x in (1.0, 2.0)[:engine.gradient_accumulation_steps()]:
            x = torch.full((4, 8), x, dtype=next(engine.parameters()).dtype)
            backward(engine.module(x)["loss"].float())
            engine.step()

    engine = make(tmp_path, WithLoss(), **more)
    before = [parameter.detach().clone() for parameter in engine.parameters()]
    with pytest.raises(spillway.InvalidArgumentError,
                       match=r"parameter . of group 0 came from a loss .*engine\.backward\(loss\)"):
        run(lambda loss: loss.backward())
    assert all(torch.equal(a, b) for a, b in zip(engine.parameters(), before, strict=True))
    engine = make(tmp_path, WithLoss(), **more)
    run(engine.backward)
    if not more:
        expected = norm_of_mean(lambda out: out.loss)
        assert engine.get_global_grad_norm() == pytest.approx(expected, rel=1e-5)


def plain(decayed, steps=6, clip=0.0, bias_correction=True):
    """Returns the parameters of `make`'s model after AdamW as its paper has it, and clips of torch.
    `decayed`: which parameters are decayed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    parameters = list(model.parameters())
    first, second = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
    for step in range(steps):
        model.zero_grad()
        for micro_batch in range(2):
            generator = torch.Generator().manual_seed(10 * step + micro_batch)
            (model(torch.randn(4, 8, generator=generator)).pow(2).mean() / 2).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        corrections = [1 - beta**(step + 1) if bias_correction else 1.0 for beta in (0.9, 0.999)]
        with torch.no_grad():
            for each, m, v in zip(parameters, first, second, strict=True):
                m.lerp_(each.grad, 0.1)
                v.lerp_(each.grad**2, 0.001)
                each.mul_(1 - 1e-3 * decayed(each))
                each.sub_(1e-2 * m / corrections[0] / ((v / corrections[1]).sqrt() + 1e-8))
    return parameters


def is_close(some, others):
    return all(torch.allclose(a, b, atol=2e-6) for a, b in zip(some, others, strict=True))


def adamw(**parameters):
    return {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1,
                                                      **parameters}},
            "scheduler": {"type": "Constant"}, "gradient_clipping": 0.0}


def all_of(parameter):
    return True


@pytest.mark.parametrize("corrects", [True, False])
def test_averages_are_corrected_as_the_configuration_says(tmp_path, corrects):
    engine = make(tmp_path, **adamw(bias_correction=corrects))
    assert is_close(train(engine, range(6)), plain(all_of, bias_correction=corrects))


def test_all_parameters_are_decayed_as_with_deepspeed_and_no_note_says_otherwise(tmp_path):
    for section in ({}, {"spillway": {"decay": "all"}}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine = make(tmp_path, **adamw(), **section)
        ours = train(engine, range(6))
        assert is_close(ours, plain(all_of))
        assert not is_close(ours, plain(lambda parameter: parameter.dim() > 1))
    with pytest.raises(spillway.NotSupportedError, match="spillway.decay is matrices.*groups"):
        make(tmp_path, **adamw(), spillway={"decay": "matrices"})


def test_without_a_limit_nothing_is_clipped_and_a_clip_of_torch_clips(tmp_path):
    unlimited = {**adamw(), "gradient_clipping": None}
    assert is_close(train(make(tmp_path, **unlimited), range(6)), plain(all_of))
    assert is_close(train(make(tmp_path, **unlimited), range(6), clip=0.05),
                    plain(all_of, clip=0.05))


@pytest.mark.parametrize("of_torch, of_ours", [(0.5, 0.05), (0.05, 0.5)])
def test_a_clip_of_torch_beside_that_of_the_configuration_clips_first(tmp_path, of_torch, of_ours):
    """As with DeepSpeed without ZeRO; with ZeRO it ignores the one of torch."""
    engine = make(tmp_path, **{**adamw(), "gradient_clipping": of_ours})
    assert is_close(train(engine, range(6), clip=of_torch), plain(all_of, clip=0.05))


def test_a_clip_of_torch_while_a_loss_scale_is_in_gradients_is_refused(tmp_path):
    engine = make(tmp_path, **adamw(), fp16={"enabled": True, "loss_scale": 128})
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    with pytest.raises(spillway.NotSupportedError, match="loss scale 128 of fp16"):
        train(engine, range(1), clip=0.05)
    assert is_close(before, engine.module.parameters())


def make_with_a_client_optimizer(limit=None, sections=None, groups=None, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              **(sections or {})}
    if limit is not None:
        config["gradient_clipping"] = limit
    optimizer = OffloadedAdamW(model.parameters() if groups is None else groups(model), lr=1e-2,
                               weight_decay=0.1, accumulation_steps=2, **more)
    return initialize(model=model, optimizer=optimizer, config=config)[0]


def test_gradients_of_a_client_optimizer_are_clipped_as_the_configuration_says():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engines = [(make_with_a_client_optimizer(0.05), 0.05), (make_with_a_client_optimizer(), 0),
                   (make_with_a_client_optimizer(max_norm=0.05), 0.05),
                   (make_with_a_client_optimizer(0.05, max_norm=0.05), 0.05),
                   (make_with_a_client_optimizer(0.0, max_norm=0.05), 0.05)]
    for engine, limit in engines:
        assert is_close(train(engine, range(6)), plain(all_of, clip=limit))
    assert not is_close(plain(all_of, clip=0.05), plain(all_of))
    with pytest.raises(spillway.InvalidArgumentError, match="gradient_clipping is 0.05.*is 1.0"):
        make_with_a_client_optimizer(0.05, max_norm=1.0)


def test_what_the_configuration_says_of_another_optimizer_is_refused(tmp_path):
    (tmp_path / "other").mkdir()

    def at(folder):
        return {"zero_optimization": {"stage": 2, "offload_optimizer": {
            "device": "nvme", "nvme_path": str(folder)}}}

    for sections, words in (
            (adamw(), "the section optimizer would make another"),
            (at(tmp_path), "nvme_path is .*, and nvme of optimizer= none"),
            ({"bf16": {"enabled": True}, "spillway": {"state_format": "split"}},
             "state_format is split, and .* fp32"),
            ({"spillway": {"seed": 3, "threads": 2}},
             "threads is 2, .* 0; spillway.seed is 3, .*1234")):
        with pytest.raises(spillway.InvalidArgumentError, match=f"{words}.*Leave one"):
            make_with_a_client_optimizer(sections=sections)
    with pytest.raises(spillway.InvalidArgumentError, match="nvme_path is .*other, and nvme"):
        make_with_a_client_optimizer(sections=at(tmp_path / "other"), nvme=[tmp_path])
    same = {**at(tmp_path), "spillway": {"state_format": "fp32", "seed": 3}}
    engine = make_with_a_client_optimizer(sections=same, nvme=tmp_path, seed=3)
    assert is_close(train(engine, range(6)), plain(all_of))


def test_a_schedule_is_that_of_the_rate_of_a_client_optimizer():
    constant = {"scheduler": {"type": "Constant"}}
    engine = make_with_a_client_optimizer(sections=constant)
    assert is_close(train(engine, range(6)), plain(all_of))
    assert engine.get_lr() == [1e-2]

    def groups(model):
        return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-3}]

    with pytest.raises(spillway.InvalidArgumentError, match=r"rates \[0.001, 0.01\].*lr_sched"):
        make_with_a_client_optimizer(sections=constant, groups=groups)


@pytest.mark.parametrize("section, words", [
    ({"pipeline": {"stages": 2}}, "pipeline.stages is 2"),
    ({"tensor_parallel": {"autotp_size": 2}}, "autotp_size is 2"),
    ({"spillway": {"device_memory": "1MB"}}, "spillway.device_memory is 1MB.*offload_model"),
    ({"spillway": {"residency": "none"}}, "spillway.residency is none.*offload_model"),
    ({"spillway": {"activations": "host"}}, "spillway.activations is host.*activation_memory"),
    ({"spillway": {"checkpointing": "nvme"}}, "spillway.checkpointing is nvme"),
    ({"spillway": {"device": "cuda"}}, "spillway.device is cuda"),
    ({"spillway": {"state_home": "device"}}, "spillway.state_home is device"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
     "no nvme_path")])
def test_what_the_engine_has_not_of_a_configuration_is_refused(tmp_path, section, words):
    with pytest.raises(spillway.Error, match=words):
        make(tmp_path, **{"zero_optimization": {}, **section})


@pytest.mark.parametrize("section, words", [
    ({"spillway": {"steps": 3, "save_every": 1, "eval_every": 1, "context": 3, "seed": 3}},
     "spillway.steps, spillway.save_every, spillway.eval_every, spillway.context: not needed"),
    ({"tensorboard": {"enabled": True}}, "tensorboard.enabled: not needed.*loop.*logs"),
    ({"csv_monitor": {"enabled": True}}, "csv_monitor.enabled: not needed"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
     "offload_param.device: not needed.*in host memory"),
    ({"activation_checkpointing": {"cpu_checkpointing": True}}, "cpu_checkpointing: not needed")])
def test_what_the_engine_does_not_need_is_noted_once(tmp_path, section, words):
    with pytest.warns(UserWarning, match=words) as caught:
        make(tmp_path, **adamw(), **section)
    assert len(caught) == 1


def test_a_configuration_that_asks_for_nothing_more_has_no_note(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(tmp_path, **adamw(), pipeline={"stages": 1}, tensorboard={"enabled": False},
             spillway={"residency": "auto", "device": "host", "seed": 3, "threads": 1,
                       "isa": "scalar", "_note": "mine"})


@pytest.mark.parametrize("kind", ["Linear", "Cosine", "WSD", "WarmupDecayLR", "WarmupCosineLR"])
def test_a_rate_that_falls_needs_the_number_of_updates(tmp_path, kind):
    def schedule(**parameters):
        return {"scheduler": {"type": kind, "params": {"warmup_num_steps": 2, **parameters}}}

    for given, said in (({}, "absent"), ({"total_num_steps": 0}, "0"),
                        ({"total_num_steps": "auto"}, '"auto"')):
        with pytest.raises(spillway.InvalidArgumentError,
                           match=f"total_num_steps is {said}, and the rate of {kind}"):
            make(tmp_path, **schedule(**given))
    engine = make(tmp_path, **schedule(total_num_steps=4))
    train(engine, range(5))
    assert engine.get_lr()[0] < 1e-5  # from 1e-2 or 1e-3; cos_min_ratio is 1e-4
    model = torch.nn.Linear(8, 1)
    initialize(model=model, config={"optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                                    **schedule()},
               lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer))


def test_what_deepspeed_has_and_spillway_has_not_is_refused(tmp_path):
    with pytest.raises(spillway.Error, match="OneBitAdam"):
        make(tmp_path, optimizer={"type": "OneBitAdam", "params": {"lr": 1e-3}})
    with pytest.raises(spillway.InvalidArgumentError, match='"auto"'):
        make(tmp_path, train_micro_batch_size_per_gpu="auto")
    with pytest.raises(spillway.InvalidArgumentError, match="no configuration"):
        initialize(model=torch.nn.Linear(1, 1))
