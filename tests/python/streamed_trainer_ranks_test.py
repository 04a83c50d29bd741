"""Trainers that torchrun starts on two ranks and whose model is streamed: the bits of one process
whose model stays, also for runs that are killed and go on."""
import os
import pathlib
import sys

import pytest
import torch
from tiny_trainers import examples, llama, make, same, seeded, train, weights
from trainer_ranks_test import RANKS, STEPS, NotingSpillway, of_one_process, torchrun
from trainer_ranks_test import killed as kill

from spillway.huggingface import SpillwayTrainer


def deep():
    return llama(width=64, layers=4)  # 0.8 MB


STREAMED = {"device_memory": "500KB"}
#: As those of trainer_ranks_test: model, options and arguments of each rank.
CASES = {"whole": (deep, {}, {}),
         "brief": (lambda: deep().bfloat16(), {"state_format": "split"}, {"max_grad_norm": 0.0}),
         "deferred": (deep, {"deferred": True}, {}),
         "evaluated": (deep, {"deferred": True}, {"eval_strategy": "steps", "eval_steps": 2,
                                  "eval_on_start": True})}


def trains(folder, rank):
    for name, (make_model, options, arguments) in CASES.items():
        torch.manual_seed(1 + rank)  # all begin as the first rank does
        more = {"eval_dataset": examples()[:8]} if "eval_steps" in arguments else {}
        trainer = make(NotingSpillway, make_model(), folder / name, STEPS, arguments=arguments,
                       spillway={**options, **STREAMED}, **more)
        trainer.noted = []
        log = train(trainer)
        (shard,) = trainer._offloaded()._shards
        assert shard._memory_of_machine.local == list(range(RANKS))
        torch.save({"log": log, "weights": weights(trainer.model), "noted": trainer.noted,
                    "losses": [entry["eval_loss"] for entry in trainer.state.log_history
                               if "eval_loss" in entry]}, folder / f"{name}.{rank}")


def killed(folder, rank):
    kill(folder, rank, deep, **STREAMED)


def resumed(folder, rank):
    """Goes on after the kill; the other run is not streamed and was not killed."""
    for path, begun, options in (("run", str(folder / "run/checkpoint-4"), STREAMED),
                                 ("uncut", None, {})):
        model = seeded(deep)
        log = train(make(SpillwayTrainer, model, folder / path, 8,
                         spillway={"nvme": [folder], **options}), resume_from_checkpoint=begun)
        torch.save((log, weights(model)), folder / f"{path}.{rank}")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    torchrun("trains", folder, script=__file__)
    return {name: [torch.load(folder / f"{name}.{rank}", weights_only=False)
                   for rank in range(RANKS)] for name in CASES}


@pytest.mark.parametrize("name", ["whole", "brief", "deferred"])
def test_streamed_ranks_have_the_bits_of_one_process(results, name):
    cases = {**CASES, "deferred": CASES["whole"]}
    expected, norms = of_one_process(name, results, cases)
    for each in results[name]:
        assert same(each["weights"], expected)
        assert [norm for _, norm in each["log"]] == norms


def test_evaluations_before_and_between_steps_change_nothing(results):
    for rank, each in enumerate(results["evaluated"]):
        assert same(each["weights"], results["whole"][rank]["weights"])
        assert len(each["losses"]) == 4 and each["losses"][-1] < each["losses"][0]


def test_killed_ranks_go_on_with_the_bits_of_ranks_that_do_not_stream(tmp_path):
    torchrun("killed", tmp_path, succeeds=False, script=__file__)
    assert os.listdir(tmp_path / "run/checkpoint-8/spillway") == ["rank0"]
    torchrun("resumed", tmp_path, script=__file__)
    for rank in range(RANKS):
        (log, values), (expected, whole) = (torch.load(tmp_path / f"{path}.{rank}")
                                            for path in ("run", "uncut"))
        assert log == expected and same(values, whole)


if __name__ == "__main__":
    {"trains": trains, "killed": killed, "resumed": resumed}[sys.argv[1]](
        pathlib.Path(sys.argv[2]), int(os.environ["RANK"]))
