"""Cases of run_identity: a run's directory, its kept checkpoints, its data and its log."""
import shutil
import signal
import time

from identity_scene import (STEPS, MODEL, Answer, case, expect_equal_runs, expect_refused,
                            expect_resumed, snapshot, unchanged)


# One process a run, and only runs.


@case
def second_start_of_a_live_run(scene):
    with scene.live("run") as process:
        config = scene.path("run/config.json").read_bytes()
        manifest = scene.path("run/manifest.json").read_bytes()
        scene.configure(seed=99)
        for more in ([], ["--resume"], ["--nvme", scene.drive("disk")]):
            expect_refused(scene.train("run", STEPS, *more), 1, str(process.pid))
        assert not list(scene.path("disk").iterdir())
        assert scene.path("run/config.json").read_bytes() == config
        assert scene.path("run/manifest.json").read_bytes() == manifest
        scene.configure()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    step = scene.step("run")
    scene.trained("run", step + 3, "--resume")
    scene.trained("whole", step + 3)
    expect_resumed(scene, "run", "whole")


@case
def two_starts_at_once(scene):
    drives = [scene.drive("disk-a"), scene.drive("disk-b")]
    processes = [scene.start(*scene.train_arguments("run", STEPS, "--nvme", drive))
                 for drive in drives]
    codes = []
    for process in processes:
        _, err = process.communicate(timeout=120)
        codes.append(process.returncode)
    assert sorted(codes)[0] == 0 and sorted(codes)[1] in (1, 2), codes
    scene.trained("whole", STEPS)
    expect_equal_runs(scene, "run", "whole")
    assert sum(len(list(drive.iterdir())) for drive in drives) == 1


@case
def readers_of_a_live_run(scene):
    # A step of a quarter of a second: readers need not race with a run that commits in no time.
    scene.configure(disk_gbps=0.005)
    with scene.live("run") as process:
        for i in range(3):
            for command in (["info", "run"], ["fsck", "run"],
                            ["eval", "--run", "run", "--data", "data"],
                            ["generate", "--run", "run", "--tokens", "3", "--json"],
                            ["export", "run", f"hf-{i}"]):
                begin = time.monotonic()
                answer = scene.run(*command)
                assert answer.code == 0, (command, str(answer))
                assert time.monotonic() - begin < 60
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode == 0
    step = scene.step("run")
    scene.configure()
    scene.trained("whole", step)
    assert scene.weights("run") == scene.weights("whole")


@case
def directories_that_hold_something_else(scene):
    scene.trained("run", 2)
    assert scene.run("export", "run", "hf").code == 0
    scene.path("text").mkdir()
    scene.path("text/notes.txt").write_text("mine")
    for name in ("hf", "data", "text"):
        with unchanged(scene.path(name)):
            expect_refused(scene.train(name, STEPS), 2, f"{name} is not a run")
        assert not scene.path(f"{name}/lock").exists()


@case
def export_over_a_run(scene):
    scene.trained("runs/run", STEPS)
    with unchanged(scene.path("runs")):
        for out in ("runs/run", "runs", "runs/run/state", "runs/run/../run"):
            expect_refused(scene.run("export", "runs/run", out, "--force"), 2, "run")
    assert scene.run("export", "runs/run", "runs/run/export").code == 0
    scene.trained("runs/run", STEPS + 2, "--resume")


@case
def failed_start(scene):
    def expect_nothing_left(answer, code):
        assert answer.code == code, answer
        after = snapshot(scene.root)
        assert after == before, sorted(after.keys() ^ before.keys())
    scene.trained("source", 2)
    assert scene.run("export", "source", "hf").code == 0
    weights = scene.path("hf/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    disk = scene.drive("disk")
    before = snapshot(scene.root)
    for more in ([], ["--nvme", disk]):
        expect_nothing_left(scene.train("new/run", 2, "--device-memory", "64KiB", *more), 3)
        answer = scene.run("train", "train.json", "--from", "hf", "--data", "data", "--run",
                           "new/run", "--steps", 2, *more)
        expect_nothing_left(answer, answer.code or 1)
        assert answer.code != 0
    expect_nothing_left(scene.run("train", "train.json", "--data", "data", "--run", "new"), 2)


@case
def killed_start(scene):
    """Whatever the instant: the next start is a whole run, and nothing of the first is left."""
    disk = scene.drive("disk")
    scene.trained("whole", STEPS)
    begin = time.monotonic()
    scene.trained("timed", 1)
    whole = time.monotonic() - begin
    for i in range(4):
        run = f"run-{i}"
        process = scene.start(*scene.train_arguments(run, STEPS, "--nvme", disk, "--resume"))
        time.sleep(whole * (i + 1) / 5)
        process.kill()
        process.communicate()
        scene.trained(run, STEPS, "--nvme", disk, "--resume")
        expect_equal_runs(scene, run, "whole")
        assert len(list(disk.iterdir())) == i + 1, list(disk.iterdir())


@case
def interrupted_export(scene):
    scene.write("model.json", MODEL | {"n_embd": 256, "n_layer": 6})
    scene.configure(device_memory="1GiB", host_memory="1GiB")
    scene.trained("run", 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        code = 0
        while code == 0:  # until one is not over before the signal comes
            shutil.rmtree(scene.path("new"), ignore_errors=True)
            process = scene.start("export", "run", "new/hf")
            while process.poll() is None and not scene.path("new/.hf.partial").exists():
                pass
            process.send_signal(number)
            process.communicate()
            code = process.returncode
            assert not scene.path("new/.hf.partial").exists()
        assert code == -number, code
        assert not scene.path("new").exists()


# Kept checkpoints.


@case
def kept_checkpoints_of_an_abandoned_run(scene):
    scene.configure(commit_every=1000, save_every=5, eval_every=5)
    scene.trained("whole", 30, "--nvme", scene.drive("whole-disk"))
    with scene.live("run", "--nvme", scene.drive("disk"), lines=14):
        pass  # killed
    scene.configure(commit_every=1000, save_every=5, eval_every=5, seed=99)
    with unchanged(scene.path("run"), scene.path("disk")):
        expect_refused(scene.train("run", 30, "--nvme", "disk"), 2, "committed step")
    scene.configure(commit_every=1000, save_every=5, eval_every=5)
    scene.trained("run", 30, "--nvme", "disk", "--resume")
    expect_equal_runs(scene, "run", "whole")
    for step in (25, 30):
        if scene.path(f"whole/checkpoints/step-{step}").exists():
            expect = scene.weights(f"whole/checkpoints/step-{step}")
            assert scene.weights(f"run/checkpoints/step-{step}") == expect


@case
def kept_checkpoint_of_another_run(scene):
    scene.configure(save_every=4, seed=99)
    scene.trained("other", STEPS)
    scene.configure(save_every=4)
    scene.trained("run", 2)
    shutil.copytree(scene.path("other/checkpoints"), scene.path("run/checkpoints"))
    with unchanged(scene.path("run")):
        expect_refused(scene.train("run", STEPS, "--resume"), 2, "step-", "move it")
    shutil.rmtree(scene.path("run/checkpoints"))
    scene.trained("run", STEPS, "--resume")


@case
def training_on_a_kept_checkpoint(scene):
    scene.configure(save_every=4)
    scene.trained("run", STEPS)
    name = sorted(scene.path("run/checkpoints").iterdir())[0]
    with unchanged(scene.path("run")):
        expect_refused(scene.train(name, STEPS, "--resume"), 2, "--from")


# What can be checked at the start is, and an error at a sound state commits.


@case
def validation_data(scene):
    before = snapshot(scene.root)
    for values, code, word in (([1] * 16, 2, "val.bin"), ([1] * 300 + [256] + [1] * 99, 1, "256")):
        scene.tokens("data/val.bin", values)
        expect_refused(scene.train("run"), code, word)
        assert not scene.path("run").exists()
    assert snapshot(scene.root).keys() == before.keys()


@case
def training_data_damaged_while_training(scene):
    scene.configure(commit_every=1000)
    with scene.live("run", lines=5) as process:
        scene.tokens("data/train.bin", [300] * 6000)
        out, err = process.communicate(timeout=120)
        expect_refused(Answer(process.returncode, out, err), 1, "train.bin")
    lines = len(scene.metrics("run"))
    assert lines >= 5 and scene.step("run") == lines, (scene.step("run"), lines)


# Metrics and data.


@case
def metrics_with_a_torn_line(scene):
    scene.trained("run", STEPS)
    scene.trained("whole", STEPS + 4)
    metrics = scene.path("run/metrics.jsonl")
    lines = metrics.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4][:20] + b"\n"
    metrics.write_bytes(b"".join(lines) + b'{"step":')
    answer = scene.trained("run", STEPS + 4, "--resume")
    assert "could not be read" in answer.err + answer.out, answer
    steps = [line["step"] for line in scene.metrics("run")]
    assert steps == [step for step in range(1, STEPS + 5) if step != 5], steps


@case
def changed_middle_of_the_data(scene):
    scene.trained("run", STEPS)
    content = bytearray(scene.path("data/train.bin").read_bytes())
    content[len(content) // 2] ^= 1
    scene.path("data/train.bin").write_bytes(content)
    with unchanged(scene.path("run")):
        expect_refused(scene.train("run", STEPS + 1, "--resume"), 2, "training tokens")
