"""A checkpoint comes to where a model is kept and trained and is never in memory as a whole: the
process has what is to stay, one tensor, and what torch takes for a pass."""
import json
import subprocess
import sys
import tempfile

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS = 1024, 4
MIB = 1 << 20

PROGRAM = """if True:
    import json, pathlib, sys, threading, time
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    import spillway.torch
    from spillway.torch import OffloadedAdamW, load_checkpoint, offload_model

    def resident():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines
                   if line.startswith(("RssAnon:", "RssShmem:")))

    class Most(threading.Thread):
        def __init__(self):
            super().__init__(daemon=True)
            self.most, self.ends = 0, False
            self.start()

        def run(self):
            while not self.ends:
                self.most = max(self.most, resident())
                time.sleep(0.001)

    def train(model, budget, frozen, state):
        plan = spillway.torch.plan(model, device_memory=budget, **frozen, **state)
        offload_model(model, budget, **frozen)
        optimizer = OffloadedAdamW([p for p in model.parameters() if p.requires_grad], **state)
        tokens = torch.randint(64, (1, 8))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        return plan, optimizer

    def prepared(model, adapts):
        return get_peft_model(model, LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"])) if adapts else model

    given = json.loads(sys.argv[1])
    warm = prepared(LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4)).bfloat16(), given["adapts"])
    train(warm, "1MB", {}, given["state"])[1].close()
    before = resident()
    most = Most()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(given["checkpoint"]), dtype=torch.bfloat16)
    load_checkpoint(model, given["checkpoint"], nvme=given["nvme"])
    loaded = resident() - before
    model = prepared(model, given["adapts"])
    plan, optimizer = train(model, "100MB", given["frozen"], given["state"])
    most.ends = True
    most.join()
    print(json.dumps({"most": most.most - before, "loaded": loaded,
                      "planned": plan.host + plan.device}))
"""


@pytest.fixture(scope="module")
def disk():
    """A folder on a disk: a file in memory is memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="spillway-test-") as folder:
        yield folder


@pytest.fixture(scope="module")
def checkpoint(disk):
    """Makes a checkpoint of a type, once."""
    made = {}

    def make(dtype):
        if dtype not in made:
            made[dtype] = f"{disk}/{dtype}"
            torch.manual_seed(1)
            LlamaForCausalLM(LlamaConfig(
                vocab_size=64, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
                num_hidden_layers=LAYERS, num_attention_heads=4)).to(dtype).save_pretrained(
                    made[dtype], max_shard_size="60MB")
        return made[dtype]

    return make


def memory(checkpoint, **given):
    given = {"checkpoint": str(checkpoint), "nvme": [], "frozen": {}, "state": {},
             "adapts": False, **given}
    line = subprocess.check_output([sys.executable, "-c", PROGRAM, json.dumps(given)], text=True)
    return json.loads(line.splitlines()[-1])


LARGEST = 4 * 4 * WIDTH * WIDTH  # of the checkpoints' tensors
MODEL = 2 * 16 * WIDTH * WIDTH * LAYERS  # in bfloat16
ROOM = 64 * MIB  # of torch, for a pass of one block and its gradients


def expect_no_copy(found):
    assert found["loaded"] < LARGEST + 4 * MIB < MODEL / 4
    assert found["most"] < found["planned"] + LARGEST + ROOM


def test_a_base_that_is_converted_and_lives_on_disk_takes_staging_alone(checkpoint, disk):
    found = memory(checkpoint(torch.float32), adapts=True, nvme=[disk],
                   frozen={"frozen": "nvme", "frozen_nvme": [disk]})
    expect_no_copy(found)
    assert found["planned"] < 100e6 + 2 * MODEL / LAYERS + 40 * MIB


def test_a_base_in_memory_is_there_once(checkpoint):
    expect_no_copy(memory(checkpoint(torch.bfloat16), adapts=True, frozen={"frozen": "host"}))


def test_a_model_that_is_trained_goes_to_its_state(checkpoint, disk):
    expect_no_copy(memory(checkpoint(torch.bfloat16),
                          state={"state_format": "split", "nvme": [disk]}))


def test_without_a_folder_what_is_converted_is_in_memory(checkpoint, disk):
    """The measurement sees it."""
    found = memory(checkpoint(torch.float32), adapts=True,
                   frozen={"frozen": "nvme", "frozen_nvme": [disk]})
    assert found["loaded"] > 0.9 * MODEL
