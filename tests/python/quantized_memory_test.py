"""A frozen base comes from its checkpoint to where it is kept: the process never has it twice, and
has one of a mapped file never beside that."""
import json
import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS = 1024, 6
MIB = 1 << 20

PROGRAM = """if True:
    import json, pathlib, sys, threading, time
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    import spillway.torch
    from spillway.torch import OffloadedAdamW, offload_model

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

    def adapters(model):
        return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))

    def train(model, budget, **frozen):
        offload_model(model, budget, **frozen)
        optimizer = OffloadedAdamW([p for p in model.parameters() if p.requires_grad])
        tokens = torch.randint(64, (1, 8))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        return optimizer

    warm = adapters(LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4)))
    train(warm, "1MB").close()
    before = resident()
    most = Most()
    if sys.argv[2] == "mapped":
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    else:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    loaded = resident() - before
    model = adapters(model)
    frozen = {"frozen": "nvme", "frozen_nvme": sys.argv[4]} if len(sys.argv) > 4 else {}
    plan = spillway.torch.plan(model, device_memory=sys.argv[3], **frozen)
    optimizer = train(model, sys.argv[3], **frozen)
    most.ends = True
    most.join()
    print(json.dumps({"most": most.most - before, "loaded": loaded,
                      "planned": plan.host + plan.device, "end": resident() - before,
                      "on_disk": plan.disk}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4)).bfloat16().save_pretrained(folder, max_shard_size="20MB")
    return folder


def memory(checkpoint, how, *folder):
    line = subprocess.check_output(
        [sys.executable, "-c", PROGRAM, checkpoint, how, "120MB", *folder], text=True)
    return json.loads(line.splitlines()[-1])


LARGEST = 2 * 4 * WIDTH * WIDTH  # of the checkpoint's tensors
ROOM = 40 * MIB  # of torch, for a pass of one block


def test_a_checkpoint_that_is_mapped_is_never_beside_its_copy(checkpoint):
    found = memory(checkpoint, "mapped")
    assert found["loaded"] < 2 * LARGEST
    assert found["most"] < found["planned"] + LARGEST + ROOM


def test_a_base_in_memory_moves_tensor_by_tensor(checkpoint):
    found = memory(checkpoint, "converted")  # to fp32, so that it is there as a whole
    assert found["loaded"] > found["planned"] * 0.6
    assert found["most"] < found["planned"] + 2 * LARGEST + 64 * MIB + ROOM


def test_a_base_on_disk_takes_staging_alone(checkpoint, tmp_path):
    found = memory(checkpoint, "mapped", tmp_path)
    block = 32 * MIB  # with two vectors
    assert LAYERS * block < found["on_disk"] < LAYERS * (block + 8192)
    # The device is host memory here; adapters and their state are small.
    assert found["planned"] < 120e6 + 2 * block + 40 * MIB < found["on_disk"] + 2 * block
    assert found["most"] < found["planned"] + LARGEST + ROOM
