"""The engine of spillway.torch.initialize: every keyword is honoured or refused, backward passes of
the program's own are those of DeepSpeed, and checkpoints can be written over."""
import argparse
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch

import spillway
from spillway.torch import Engine, OffloadedAdamW, init_distributed, initialize

CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "gradient_clipping": 0.05,
          "optimizer": {"type": "AdamW",
                        "params": {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def make(**more):
    model = network()
    return initialize(model=model, model_parameters=model.parameters(),
                      config={**CONFIG, **more})[0]


def batch(number, engine=None):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
    return x if engine is None else x.to(next(engine.module.parameters()).dtype)


def train(engine, numbers, own_backward=False):
    losses = []
    for number in numbers:
        loss = engine(batch(number, engine)).float().pow(2).mean()
        if own_backward:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    return losses


def weights(engine):
    return [parameter.detach().clone() for parameter in engine.module.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def run_peer(*arguments):
    done = subprocess.run([sys.executable, __file__, *arguments], check=False,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_backward_pass_of_the_programs_own_is_that_of_deepspeed():
    ours, theirs = run_peer("spillway"), run_peer("deepspeed")
    # Feedback carries roundings of fp32 through 6 updates.
    assert ours["own"] == pytest.approx(theirs["own"], rel=1e-5)
    assert ours["own"] == pytest.approx(theirs["engine"], rel=1e-5)
    assert ours["own_norm"] == pytest.approx(theirs["engine_norm"], rel=1e-4)
    assert ours["returned"] == pytest.approx(theirs["returned"], rel=1e-5)
    with torch.no_grad():
        untrained = [float(network()(batch(number)).pow(2).mean()) for number in range(12)]
    assert ours["own"][-1] != pytest.approx(untrained[-1], rel=1e-3), "nothing was trained"


def test_fp16_needs_the_scale():
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}
    engine, expected = make(**fp16), make(**fp16)
    train(expected, range(4))
    for number in range(4):
        loss = engine(batch(number, engine)).float().pow(2).mean()
        if number == 2:
            with pytest.raises(spillway.InvalidArgumentError, match="loss scale 256.*scale"):
                loss.backward(retain_graph=True)
        engine.scale(loss).backward()
        engine.step()
    assert same(weights(engine), weights(expected))


def test_a_loss_need_not_be_divided():
    engine, expected = make(gradient_clipping=0.0), make(gradient_clipping=0.0)
    for number in range(2):
        loss = engine(batch(number)).pow(2).mean()
        assert engine.backward(loss / 2, scale_wrt_gas=False) is not None
        engine.step()
    train(expected, range(2))
    assert same(weights(engine), weights(expected))


def test_keywords_are_those_of_deepspeed():
    import deepspeed

    for ours, theirs in ((Engine.save_checkpoint, deepspeed.DeepSpeedEngine.save_checkpoint),
                         (Engine.load_checkpoint, deepspeed.DeepSpeedEngine.load_checkpoint),
                         (Engine.step, deepspeed.DeepSpeedEngine.step),
                         (initialize, deepspeed.initialize),
                         (init_distributed, deepspeed.init_distributed)):
        mine = inspect.signature(ours).parameters
        assert set(mine) == set(inspect.signature(theirs).parameters), ours
        assert not any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
                       for each in mine.values())


def test_misspelt_and_unsupported_keywords_are_named(tmp_path):
    engine = make()
    for call in (lambda: engine.save_checkpoint(tmp_path, save_lastest=False),
                 lambda: engine.load_checkpoint(tmp_path, load_optimizer_state=False),
                 lambda: initialize(model=network(), config=CONFIG, modle=1),
                 lambda: OffloadedAdamW(network().parameters(), fuzed=True)):
        with pytest.raises(TypeError, match="save_lastest|load_optimizer_state|modle|fuzed"):
            call()
    for name in ("mpu", "mesh_param"):
        with pytest.raises(spillway.NotSupportedError, match=name):
            initialize(model=network(), config=CONFIG, **{name: object()})
    for group in ({"amsgrad": True}, {"maximize": True}):
        with pytest.raises(spillway.NotSupportedError, match=f"has {next(iter(group))}=True"):
            OffloadedAdamW([{"params": list(network().parameters()), **group}])
    optimizer = OffloadedAdamW(network().parameters())
    optimizer.param_groups[0]["amsgrad"] = True
    optimizer.param_groups[0]["params"][0].grad = torch.ones(32, 8)
    with pytest.raises(spillway.NotSupportedError, match="amsgrad=True"):
        optimizer.step()


def saved(tmp_path, steps=8, **more):
    engine = make(**more)
    train(engine, range(steps))
    engine.save_checkpoint(tmp_path, tag="best", client_state={"epoch": 3})
    return engine


def test_only_the_model_or_no_optimizer_state_may_be_loaded(tmp_path):
    first = saved(tmp_path)
    moments = first.optimizer.state_dict()["state"][0]["exp_avg"]
    only = make()
    assert only.load_checkpoint(tmp_path, load_module_only=True)[1] == {"epoch": 3}
    assert same(weights(only), weights(first))
    assert only.global_steps == 0 and only.get_lr() == make().get_lr()
    assert only.optimizer.state_dict()["state"] == {}
    without = make()
    without.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert without.global_steps == 4 and without.get_lr() == first.get_lr()
    assert without.optimizer.state_dict()["state"] == {}
    unscheduled = make()
    unscheduled.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert unscheduled.lr_scheduler.updates == 0
    assert torch.equal(unscheduled.optimizer.state_dict()["state"][0]["exp_avg"], moments)
    other = make()
    other.load_checkpoint(tmp_path, load_module_only=True,
                          custom_load_fn=lambda src, dst: dst[0].load_state_dict(
                              {"weight": src["0.weight"], "bias": src["0.bias"]}))
    assert torch.equal(other.module[0].weight, first.module[0].weight)
    assert torch.equal(other.module[2].weight, make().module[2].weight)


@pytest.mark.parametrize("saved_micro_batches, pending", [(9, 0), (8, 1), (9, 1)])
def test_a_step_that_a_checkpoint_or_a_load_cuts_off_begins_again(tmp_path, saved_micro_batches,
                                                                  pending):
    saved(tmp_path, steps=saved_micro_batches)
    resumed = make()
    train(resumed, range(20, 20 + pending))
    resumed.load_checkpoint(tmp_path)
    assert resumed.global_steps == 4 and resumed.micro_steps == 8
    expected = make()
    assert train(resumed, range(8, 12)) == train(expected, range(12))[8:]
    assert same(weights(resumed), weights(expected))


def test_a_checkpoint_may_go_on_with_another_number_of_micro_batches(tmp_path):
    saved(tmp_path, steps=6)
    resumed = make(gradient_accumulation_steps=4)
    resumed.load_checkpoint(tmp_path)
    train(resumed, range(3))
    assert resumed.global_steps == 3
    train(resumed, range(3, 4))
    assert resumed.global_steps == 4


def test_latest_and_frozen_parameters_are_left_out_where_asked(tmp_path):
    model = network()
    model[0].requires_grad_(False)
    engine = initialize(model=model, config=CONFIG)[0]
    train(engine, range(2))
    engine.save_checkpoint(tmp_path, tag="one", save_latest=False, exclude_frozen_parameters=True)
    assert not (tmp_path / "latest").exists()
    assert set(torch.load(tmp_path / "one/model.pt")) == {"2.weight", "2.bias"}
    with pytest.raises(RuntimeError, match="Missing key"):
        engine.load_checkpoint(tmp_path, "one")
    assert engine.load_checkpoint(tmp_path, "one", load_module_strict=False)[0]
    with pytest.raises(spillway.InvalidArgumentError, match="tag two .* there is one"):
        engine.load_checkpoint(tmp_path, "two")
    for tag in ("..", "../two", "latest", ""):
        with pytest.raises(spillway.InvalidArgumentError, match="tag is"):
            engine.save_checkpoint(tmp_path, tag=tag)


def test_a_tag_may_be_saved_again_and_files_of_others_stay(tmp_path):
    engine = saved(tmp_path)
    (tmp_path / "best/notes.txt").write_text("good")
    (tmp_path / "best/optimizer/more").mkdir()
    train(engine, range(8, 12))
    engine.save_checkpoint(tmp_path, tag="best")
    resumed = make()
    resumed.load_checkpoint(tmp_path)
    assert resumed.global_steps == 6 and same(weights(resumed), weights(engine))
    assert (tmp_path / "best/notes.txt").read_text() == "good"
    assert {path.name for path in tmp_path.iterdir()} == {"best", "latest"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("")
    with pytest.raises(spillway.InvalidArgumentError, match="is no checkpoint"):
        engine.save_checkpoint(tmp_path, tag="other")


def test_a_16bit_model_that_finds_no_room_leaves_none_taken(tmp_path, monkeypatch):
    engine = make()
    engine.save_16bit_model(tmp_path)
    before = (tmp_path / "pytorch_model.bin").read_bytes()

    def fails(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(spillway.IoError, match="No space left.*as it was"):
            engine.save_16bit_model(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]
    assert (tmp_path / "pytorch_model.bin").read_bytes() == before


@pytest.mark.parametrize("call", ["fsync", "rename", "model", "state"])
def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch, call):
    engine = saved(tmp_path)
    before = weights(engine)
    train(engine, range(8, 12))

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    target = {"fsync": (os, "fsync"), "rename": (spillway._files, "_exchange"),
              "model": (torch, "save"), "state": (engine.optimizer, "save")}[call]
    with monkeypatch.context() as patched:
        patched.setattr(*target, fails)
        with pytest.raises(spillway.IoError, match="No space left.*as it was"):
            engine.save_checkpoint(tmp_path, tag="best")
    resumed = make()
    resumed.load_checkpoint(tmp_path, "best")
    assert same(weights(resumed), before)
    assert {path.name for path in tmp_path.iterdir()} == {"best", "latest"}
    engine.save_checkpoint(tmp_path, tag="best")
    resumed.load_checkpoint(tmp_path)
    assert same(weights(resumed), weights(engine))


@pytest.mark.parametrize("number", range(1, 14, 3))
def test_a_save_that_is_killed_leaves_the_old_or_the_new_checkpoint(tmp_path, number):
    done = subprocess.run([sys.executable, __file__, "killed", str(tmp_path), str(number)],
                          check=False, capture_output=True, encoding="utf-8")
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    resumed = make()
    resumed.load_checkpoint(tmp_path)
    assert resumed.global_steps in (4, 6)
    expected = make()
    train(expected, range(2 * resumed.global_steps))
    assert same(weights(resumed), weights(expected))
    train(resumed, range(2 * resumed.global_steps, 14))
    resumed.save_checkpoint(tmp_path, tag="best")
    train(expected, range(2 * expected.global_steps, 14))
    again = make()
    again.load_checkpoint(tmp_path)
    assert same(weights(again), weights(expected))
    assert {path.name for path in tmp_path.iterdir()} == {"best", "latest"}


def save_and_die(folder, number):
    """Dies before the n-th write, sync or rename of a second save to the same tag."""
    engine = saved(folder)
    train(engine, range(8, 12))
    calls = []

    def counted(function):
        def call(*arguments, **keywords):
            calls.append(None)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)
        return call

    for module, name in ((os, "fsync"), (os, "mkdir"), (torch, "save"), (pathlib.Path, "rename"),
                         (spillway._files, "_exchange"), (spillway._files.shutil, "rmtree"),
                         (engine.optimizer, "save")):
        setattr(module, name, counted(getattr(module, name)))
    engine.save_checkpoint(folder, tag="best")


def show(kind):
    """Prints losses of both ways to call backward, with DeepSpeed or with ours. DeepSpeed takes the
    program's own from stage 1 on."""
    if kind == "deepspeed":
        os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
                          RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        import deepspeed as module
    else:
        import spillway.torch as module
    module.init_distributed()
    said = {}
    for name in ("engine", "own"):
        model = network()
        engine, *_ = module.initialize(model=model, model_parameters=model.parameters(),
                                       config={**CONFIG, "zero_optimization": {"stage": 1}})
        said[name] = train(engine, range(12), name == "own")
        said[name + "_norm"] = float(engine.get_global_grad_norm())  # which clipping hides
    said["returned"] = float(engine.backward(engine(batch(0)).pow(2).mean()))
    print(json.dumps(said))


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}


def test_what_the_program_asks_of_the_optimizer_knows_the_loss_scale():
    engine = make(**FP16, gradient_accumulation_steps=1, gradient_clipping=0)
    engine.backward(engine(batch(0, engine)).float().square().mean())
    before = weights(engine)
    with pytest.raises(spillway.InvalidArgumentError, match=r"loss scale 256.0.*engine\.step\(\)"):
        engine.optimizer.step()
    assert same(weights(engine), before)
    norm = float(engine.optimizer.clip_grad_norm_(1e-3))
    engine.step()
    assert engine.get_global_grad_norm() == pytest.approx(norm, rel=1e-6)
    expected = make(**FP16, gradient_accumulation_steps=1, gradient_clipping=1e-3)
    expected.backward(expected(batch(0, expected)).float().square().mean())
    expected.step()
    assert same(weights(engine), weights(expected))


def test_a_configuration_comes_in_one_way(tmp_path):
    arguments = argparse.Namespace(deepspeed_config=str(tmp_path / "ds.json"))
    for more in ({"args": arguments}, {"config_params": CONFIG}):
        with pytest.raises(spillway.InvalidArgumentError, match="config and .* would be ignored"):
            initialize(model=network(), config=CONFIG, **more)
    initialize(args=argparse.Namespace(deepspeed_config=None), model=network(), config=CONFIG)


def test_an_optimizer_or_a_schedule_of_something_else_is_refused():
    without = {key: value for key, value in CONFIG.items() if key not in ("optimizer", "scheduler")}
    other = OffloadedAdamW(network().parameters(), missing="zero", accumulation_steps=None)
    for more in ({"optimizer": other, "config": without},
                 {"model_parameters": network().parameters(), "config": CONFIG}):
        with pytest.raises(spillway.InvalidArgumentError, match="would not be trained"):
            initialize(model=network(), **more)
    model = network()
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
    with pytest.raises(spillway.InvalidArgumentError, match="another optimizer, a SGD.*lambda"):
        initialize(model=model, config=CONFIG, lr_scheduler=schedule)


@pytest.mark.parametrize("name", ["model.pt", "engine.pt"])
def test_a_damaged_file_of_a_checkpoint_is_named(tmp_path, name):
    saved(tmp_path)
    path = tmp_path / "best" / name
    path.write_bytes(path.read_bytes()[:-100])
    engine = make()
    before = weights(engine)
    with pytest.raises(spillway.CorruptDataError, match=f"{name} is damaged.*another tag"):
        engine.load_checkpoint(tmp_path)
    assert same(weights(engine), before)
    path.unlink()
    if name == "model.pt":
        with pytest.raises(spillway.IoError, match=f"{name} cannot be read"):
            engine.load_checkpoint(tmp_path)
    train(engine, range(2))


if __name__ == "__main__":
    if sys.argv[1] == "killed":
        save_and_die(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    else:
        show(sys.argv[1])
