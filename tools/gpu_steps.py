"""What tools/gpu-run runs, in order: first whatever decides what the rest is worth, then speed,
then what takes long and rarely finds anything. Commands name sizes in braces. A rehearsal replaces
them by tiny ones, so that the same words run on a machine without a GPU."""
import json
import pathlib
import sys
from typing import Callable, NamedTuple


class Step(NamedTuple):
    name: str
    command: list
    limit: int            # seconds; at most what one call has
    why: str
    needs: tuple = ()     # of "gpu", "compute-sanitizer", "torch", "transformers", "large host"
    expects: Callable = lambda found: ""  # of the step's JSON: what is wrong with it


# Rounds and micro-batches as tools/predict finds them best, for a large host and for 128 GiB.
FULL = {"llama": "llama-3-8b", "context": 8192, "gpt2": "gpt2", "gpt2_context": 1024,
        "many": 557056, "few": 65536, "glimpse": 0.01, "seconds": 0.3, "page": "1MiB",
        "copy": "1GiB", "rounds_68": 68, "rounds_34": 34, "rounds_17": 17, "micro_4": 4,
        "layers": 4, "copies": "", "small": 4096}
TINY = FULL | {"context": 64, "gpt2_context": 16, "many": 256, "few": 128, "glimpse": 0.001,
               "seconds": 0.001, "copy": "1MiB", "rounds_68": 4, "rounds_34": 2, "rounds_17": 2,
               "micro_4": 2, "layers": 2, "copies": "--pinned-only",
               "small": 64}
TINY_MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96,
              "max_position_embeddings": 64, "hidden_size": 32, "num_hidden_layers": 3,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
              "intermediate_size": 48, "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": False},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 96,
             "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}}
# Of the rehearsal's tests and peers: each program starts, and does a little.
TINY_TESTS = {"offload_gpu_test": "--gtest_filter=-CudaGpu.*Cop*:*ASteadyStateAllocatesNothing*",
              "model_gpu_test": "--gtest_filter=*Norm*fp32*",
              "cpu_adam_gpu_test": "--gtest_filter=*Refuses*:*Norm*",
              "comm_gpu_test": "--gtest_filter=*/1",
              "engine_gpu_test": "--gtest_filter=CalibrationOfTinyModel.*"}
TINY_PEER = ["--steps", "1", "--torch-device", "cpu"]

# The memory of the machine that can be had, and of an H100 where the GPU has more.
HOST = "--host-memory 110GB"
DEVICE = "--device-memory 79GB"
GPU = "bin/spillway bench gpu --device cuda --json --model {llama} --sequence {context}"
# Algorithms of matrix products that one step measures and the others start with. The file lies with
# the results, so that whoever goes on elsewhere has it too.
PROFILE = "--profile {machine} --device cuda --json"
STEP = f"bin/spillway bench step {PROFILE}"
SPLIT = f"{STEP} --model {{llama}} --context {{context}} --state-format split --clip 1"
LARGE = f"{SPLIT} --tokens-per-step {{many}} --steps 2"
SMALL = f"{SPLIT} --tokens-per-step {{few}}"


def attends_by_cudnn(found) -> str:
    engines = (found or {}).get("attention_engines", "")
    return "" if engines.startswith("cuDNN") else f"attention is \"{engines}\" and not cuDNN's"


# Name, command, limit, why.
FIRST = (
    ("attention.kind", f"{GPU} --seconds {{glimpse}} --copy {{page}} --pinned-only", 120,
     "cuDNN attends: everything else would be 20 times slower", attends_by_cudnn),
    ("bench.gpu", f"{GPU} --seconds {{seconds}} --copy {{copy}} "
     "{copies}", 300,
     "GEMM, attention and copies: what the machine can do", attends_by_cudnn),
    ("bench.gpu.any-order", f"{GPU} --any-order --seconds {{seconds}} --copy {{page}} "
     "--pinned-only", 300, "what the fixed order of attention's sums costs", attends_by_cudnn),
    ("calibrate.products", f"bin/spillway profile {PROFILE} --model {{llama}} "
     "--context {context} --micro-batch 2", 300,
     "the fastest algorithm of each product, for the steps that follow"),
    ("calibrate.plan", f"bin/spillway plan {{config}} {PROFILE} --model {{llama}} --no-commits "
     f"--run {{scratch}} {HOST}", 300, "the rates that plans are made with, and the plan"),
)
# Before speed: what a wrong result of would make it worthless.
CONTRACT = ("offload_gpu_test", "cpu_adam_gpu_test", "model_gpu_test")
# Name, command, limit, why, what is needed besides a GPU.
SPEED = (
    ("bench.step.557k.128gib",
     f"{LARGE} --micro-batch 2 --rounds {{rounds_34}} {HOST} {DEVICE} --limit", 580,
     "the peer's configuration, with exact masters and clipping, and the resident limit"),
    ("bench.step.64k.128gib", f"{SMALL} --micro-batch 2 --rounds 1 {HOST} {DEVICE}", 400,
     "few tokens a step, where transfers are hard to hide"),
    ("bench.step.24gb.128gib",
     f"{LARGE} --micro-batch 1 --rounds {{rounds_68}} {HOST} --device-memory 24GB", 580,
     "a consumer GPU's memory"),
    ("bench.step.nvme.128gib",
     f"{LARGE} --micro-batch 2 --rounds {{rounds_17}} --layers {{layers}} {HOST} {DEVICE} "
     "--nvme {scratch}", 400, "optimizer state on a disk of 64 GiB: that of 4 layers"),
    ("bench.step.557k", f"{LARGE} --micro-batch {{micro_4}} --rounds {{rounds_17}} {DEVICE} "
     "--limit", 580, "the same with all state in DRAM", "large host"),
    ("bench.step.64k", f"{SMALL} --micro-batch {{micro_4}} --rounds 2 {DEVICE}", 400,
     "the same with all state in DRAM", "large host"),
    ("bench.step.24gb", f"{LARGE} --micro-batch 1 --rounds {{rounds_34}} --device-memory 24GB",
     580, "the same with all state in DRAM", "large host"),
    ("bench.step.nvme",
     f"{LARGE} --micro-batch {{micro_4}} --rounds {{rounds_17}} {DEVICE} --nvme {{scratch}}", 580,
     "all optimizer state on disk", "large host"),
    ("calibrate.products.small", f"bin/spillway profile {PROFILE} --model {{gpt2}} "
     "--context {gpt2_context}", 200, "the fastest algorithms for the small model"),
    ("bench.step.small", f"{STEP} --model {{gpt2}} --context {{gpt2_context}} "
     "--tokens-per-step {small}", 200, "a small model, where launches show"),
)
# What runs under compute-sanitizer, with the gtest filter that keeps it short: nothing that times.
SANITIZED = {"model_gpu_test": "*-*Large*:*Speed*", "cpu_adam_gpu_test": "*-*Large*:*Speed*",
             "offload_gpu_test": "*-*Overlap*:*DoesNotWait*",
             "engine_gpu_test":
             "ExactnessOfOneRound.*:Training.*:FormatExactness.EveryOptimizer*"}
# racecheck instruments our own kernels alone, whose mangled names hold the namespace. initcheck
# would not see what other kernels write, so it runs only where no vendor's kernel does.
RACECHECK = {name: (tests, "--kernel-name", "kns=spillway") for name, tests in SANITIZED.items()
             if name != "offload_gpu_test"}
INITCHECK = {"model_gpu_test": ("*gpu_own_attention*:*Norm*:*ActivationOp*:*LossOps*",),
             "cpu_adam_gpu_test": (SANITIZED["cpu_adam_gpu_test"],),
             "offload_gpu_test": (SANITIZED["offload_gpu_test"],)}


def sizes_of(out: pathlib.Path, rehearsal: bool) -> dict:
    """Values of the braces."""
    out = out.resolve()
    sizes = dict(TINY if rehearsal else FULL)
    if rehearsal:
        sizes |= {name: out / f"{name}.json" for name in TINY_MODELS}
    return sizes | {"machine": out / "machine.json", "config": out / "plan.json",
                    "scratch": out / "scratch"}


def write_inputs(sizes: dict) -> None:
    """The files that the braces name, where they are the script's own."""
    for name, model in TINY_MODELS.items():
        if isinstance(sizes[name], pathlib.Path):
            sizes[name].write_text(json.dumps(model))
    sizes["config"].write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "gradient_accumulation_steps": sizes["rounds_34"],
        "spillway": {"context": sizes["context"], "rounds": sizes["rounds_34"],
                     "state_format": "split"}}))


def make_steps(bundle: dict, sizes: dict, rehearsal: bool) -> list:
    def words(command):
        return command.format(**sizes).split()

    def tests(named):
        return [Step(f"test.{name}", [f"bin/{name}"] + ([TINY_TESTS[name]] if rehearsal and
                                                       name in TINY_TESTS else []),
                     400, "tests with a GPU") for name in bundle["tests"] if named(name)]

    def peers(named):
        return [Step(f"peer.{peer['name']}",
                     [sys.executable, *peer["command"]] + (TINY_PEER if rehearsal else []), 400,
                     "comparison with PyTorch on the GPU", ("gpu", "torch") +
                     (("transformers",) if "transformers" in peer["name"] else ()))
                for peer in bundle["peers"] if named(peer["name"])]

    def losses(name):
        return name.startswith("llama_peer")

    steps = [Step(name, words(command), limit, why, ("gpu",), *expects)
             for name, command, limit, why, *expects in FIRST]
    steps += tests(lambda name: name in CONTRACT) + peers(losses)
    steps += [Step(name, words(command), limit, why, ("gpu", *needs))
              for name, command, limit, why, *needs in SPEED]
    steps += tests(lambda name: name not in CONTRACT) + peers(lambda name: not losses(name))
    memcheck = {name: (tests,) for name, tests in SANITIZED.items()}
    for tool, programs in (("memcheck", memcheck), ("racecheck", RACECHECK),
                           ("initcheck", INITCHECK)):
        steps += [Step(f"{tool}.{name}",
                       ["compute-sanitizer", "--tool", tool, *options, "--error-exitcode", "99",
                        f"bin/{name}", f"--gtest_filter={chosen}"], 500,
                       f"{tool} finds nothing in the kernels", ("gpu", "compute-sanitizer"))
                  for name, (chosen, *options) in programs.items() if name in bundle["tests"]]
    return steps
