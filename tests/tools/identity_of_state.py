"""Cases of run_identity: state that is lost, shared, moved or copied."""
import json
import os
import shutil
import signal

from identity_scene import (STEPS, ENDLESS, Answer, case, expect_equal_runs, expect_refused,
                            expect_resumed, snapshot, unchanged)


# State that is missing, blank or another's is never a fresh start.


def damaged_state(scene, damage, *words):
    scene.trained("whole", 2 * STEPS, "--nvme", scene.drive("whole-disk"))
    scene.trained("run", STEPS, "--nvme", scene.drive("disk"))
    swap = scene.state("run") / "tiles-0.swap"
    shutil.copy(swap, scene.path("kept.swap"))
    damage(swap)
    for more in ([], ["--nvme", "disk"]):
        with unchanged(scene.path("run"), scene.path("disk")):
            answer = scene.train("run", 2 * STEPS, "--resume", *more)
            expect_refused(answer, 1, "tiles-0.swap", *words)
    with unchanged(scene.path("run"), scene.path("disk")):
        expect_refused(scene.train("run", 2 * STEPS), 2, "--resume")
    for command in (["info", "run"], ["eval", "--run", "run", "--data", "data"],
                    ["export", "run", "hf"], ["fsck", "run"]):
        assert scene.run(*command).code == 1, command
    shutil.move(scene.path("kept.swap"), swap)
    scene.trained("run", 2 * STEPS, "--resume")
    expect_resumed(scene, "run", "whole")


@case
def swap_file_truncated(scene):
    damaged_state(scene, lambda swap: os.truncate(swap, 0))


@case
def swap_file_blank(scene):
    def damage(swap):
        with open(swap, "r+b") as file:
            file.write(bytes(4096))
    damaged_state(scene, damage)


@case
def swap_file_deleted(scene):
    damaged_state(scene, os.unlink)


@case
def swap_file_of_another_run(scene):
    scene.configure(seed=99)
    scene.trained("other", STEPS)
    scene.configure()
    foreign = scene.state("other") / "tiles-0.swap"
    damaged_state(scene, lambda swap: shutil.copy(foreign, swap), "belongs to run")


@case
def swap_file_without_a_commit(scene):
    """A store that was made for this very run and never committed."""
    process = scene.start(*scene.train_arguments("run", ENDLESS))
    manifest = scene.path("run/manifest.json")
    while not manifest.exists():
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    if scene.manifest("run")["committed"]:
        return  # it was faster than the kill
    store = scene.state("run") / "tiles-0.swap"
    if scene.run("info", "run").code == 0:
        return
    shutil.copy(store, scene.path("fresh.swap"))
    with unchanged(scene.path("run")):
        expect_refused(scene.run("info", "run"), 2, "no committed step")


@case
def drive_not_mounted(scene):
    scene.trained("whole", 2 * STEPS)
    scene.trained("run", STEPS, "--nvme", scene.drive("disk"))
    shutil.move(scene.path("disk"), scene.path("drive"))
    scene.drive("disk")  # the empty mount point
    for more in ([], ["--nvme", "disk"]):
        with unchanged(scene.path("run"), scene.path("disk"), scene.path("drive")):
            answer = scene.train("run", 2 * STEPS, "--resume", *more)
            assert answer.code in (1, 2), answer
            assert str(scene.path("disk").resolve()) in answer.err, answer
    # It is mounted elsewhere.
    scene.trained("run", 2 * STEPS, "--resume", "--nvme", "drive")
    expect_resumed(scene, "run", "whole")
    assert str(scene.path("drive").resolve()) in scene.manifest("run")["state"][0]


@case
def other_drive_on_resume(scene):
    scene.trained("run", STEPS, "--nvme", scene.drive("disk"))
    scene.drive("other")
    with unchanged(scene.path("run"), scene.path("disk"), scene.path("other")):
        expect_refused(scene.train("run", 2 * STEPS, "--resume", "--nvme", "other"), 2,
                       scene.path("disk").resolve(), scene.path("other").resolve())


@case
def drive_with_a_typo(scene):
    before = snapshot(scene.root)
    expect_refused(scene.train("run", STEPS, "--nvme", "dsik"), 2, "dsik")
    assert snapshot(scene.root) == before


@case
def swap_file_deleted_while_training(scene):
    with scene.live("run") as process:
        (scene.state("run") / "tiles-0.swap").unlink()
        out, err = process.communicate(timeout=120)
        expect_refused(Answer(process.returncode, out, err), 1, "tiles-0.swap")
        assert "trained" not in out, out


@case
def run_deleted_while_training(scene):
    with scene.live("run", "--nvme", scene.drive("disk")) as process:
        shutil.rmtree(scene.path("run"))
        out, err = process.communicate(timeout=120)
        expect_refused(Answer(process.returncode, out, err), 1, scene.path("run").resolve())
        assert "trained  " not in out, out


@case
def run_replaced_while_training(scene):
    """The directory is there again, as another's."""
    with scene.live("run", "--nvme", scene.drive("disk")) as process:
        os.rename(scene.path("run"), scene.path("aside"))
        shutil.copytree(scene.path("aside"), scene.path("run"))
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1 and "lock" in err, err


# Runs that share a drive.


@case
def runs_on_one_drive(scene):
    disk = scene.drive("disk")
    scene.trained("whole-a", STEPS)
    scene.configure(seed=99)
    scene.trained("whole-b", STEPS)
    scene.configure()
    with scene.live("a", "--nvme", disk) as process:
        scene.configure(seed=99)
        scene.trained("b", STEPS, "--nvme", disk)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode == 0
    expect_equal_runs(scene, "b", "whole-b")
    losses = {run: scene.run("eval", "--run", run, "--data", "data").out
              for run in ("a", "b", "whole-b")}
    assert losses["b"] == losses["whole-b"] != losses["a"], losses
    scene.configure()
    shorter = scene.metrics("whole-a")[:STEPS - 1]
    assert scene.metrics("a")[:STEPS - 1] == shorter
    assert len(list(disk.iterdir())) == 2


# Runs that are moved and copied.


@case
def moved_run(scene):
    scene.trained("whole", 2 * STEPS)
    for name, more in (("run", []), ("far", ["--nvme", scene.drive("disk")])):
        scene.trained(name, STEPS, *more)
        identity = scene.manifest(name)["id"]
        scene.drive(f"{name}-place")
        shutil.move(scene.path(name), scene.path(f"{name}-place/moved"))
        scene.trained(f"{name}-place/moved", 2 * STEPS, "--resume")
        expect_resumed(scene, f"{name}-place/moved", "whole")
        assert scene.manifest(f"{name}-place/moved")["id"] == identity


@case
def copied_run(scene):
    scene.configure(save_every=4)
    scene.trained("whole", 2 * STEPS)
    scene.trained("run", STEPS)
    shutil.copytree(scene.path("run"), scene.path("copy"))
    with unchanged(scene.path("run")):
        scene.trained("copy", 2 * STEPS, "--resume")
    assert scene.manifest("copy")["id"] != scene.manifest("run")["id"]
    config = json.loads(scene.path("copy/config.json").read_text())
    assert config["id"] == scene.manifest("copy")["id"]
    with unchanged(scene.path("copy")):
        scene.trained("run", 2 * STEPS, "--resume")
    for name in ("run", "copy"):
        expect_resumed(scene, name, "whole")
    scene.trained("copy", 2 * STEPS + 1, "--resume")


@case
def copied_run_with_shared_state(scene):
    scene.trained("whole", 2 * STEPS)
    scene.trained("run", STEPS, "--nvme", scene.drive("disk"))
    shutil.copytree(scene.path("run"), scene.path("copy"))
    with unchanged(scene.path("run"), scene.path("copy"), scene.path("disk")):
        expect_refused(scene.train("copy", 2 * STEPS, "--resume"), 2, scene.path("copy").resolve(),
                       scene.path("run").resolve())
    shutil.move(scene.path("run"), scene.path("aside"))
    scene.trained("copy", 2 * STEPS, "--resume")
    expect_resumed(scene, "copy", "whole")
    # The one that was left behind is the copy now.
    shutil.move(scene.path("aside"), scene.path("run"))
    with unchanged(scene.path("run"), scene.path("copy"), scene.path("disk")):
        expect_refused(scene.train("run", 2 * STEPS, "--resume"), 2, scene.path("copy").resolve())
