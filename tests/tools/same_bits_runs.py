"""The runs and the plans that same_bits records. A run fixes what a measurement of the machine
could decide, so that its byte counters are those of the product and not of the hour; `covers` names
what its placement must show, so that a run does not lose its subject unseen."""

from program_folder import MODEL as GPT2

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
         "max_position_embeddings": 16, "hidden_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 112,
         "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}


def qwen(number):
    return LLAMA | {"model_type": f"qwen{number}", "architectures": [f"Qwen{number}ForCausalLM"],
                    "tie_word_embeddings": number == 2, "num_hidden_layers": 2, "head_dim": 12}


MODELS = {
    "gpt2": GPT2,
    "gpt2-untied": GPT2 | {"tie_word_embeddings": False, "n_layer": 3, "vocab_size": 300,
                           "activation_function": "gelu"},
    "gpt2-deep": GPT2 | {"tie_word_embeddings": False, "n_layer": 6},
    "llama": LLAMA,
    "llama-deep": LLAMA | {"num_hidden_layers": 6},
    "llama-tied": LLAMA | {"tie_word_embeddings": True, "num_hidden_layers": 2, "rope_scaling": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8}},
    "wide": LLAMA | {"hidden_size": 64, "intermediate_size": 1024, "num_hidden_layers": 2},
    "mistral": LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "qwen2": qwen(2),
    "qwen3": qwen(3),
}

FIXED = {"context": 16, "seed": 3, "tile_parameters": 8192, "threads": 2, "compute_threads": 1,
         "commit_every": 2, "eval_every": 4, "device": "host", "state_home": "host",
         "residency": "all", "checkpointing": "keep", "activations": "device",
         "gradient_sums": "device", "device_memory": "256MiB", "host_memory": "256MiB"}
DISK = ("--nvme", "disk")
RUNS, PLANS = [], []


def optimizer(kind, **parameters):
    return {"type": kind, "params": {"lr": 3e-3, "weight_decay": 0.05} | parameters}


def scheduler(kind, **parameters):
    return {"type": kind, "params": parameters}


ADAMW = optimizer("AdamW", betas=[0.9, 0.99])


def run(name, model="gpt2", *, steps=6, micro=2, windows=4, config=None, flags=(), covers=(),
        parts=(), counted=True, **section):
    """Parts are the processes of a run, each with `steps` at its end and, if it differs from the
    first, `section` and `flags`; `kill`: it is killed after so many steps; `start`: it trains a new
    run from what the last one left there."""
    RUNS.append({
        "name": name, "model": model, "flags": list(flags), "covers": list(covers),
        "counted": counted, "parts": list(parts) or [{"steps": steps}],
        "config": {"train_micro_batch_size_per_gpu": micro,
                   "gradient_accumulation_steps": windows // micro, "gradient_clipping": 1.0,
                   "optimizer": ADAMW, **(config or {}), "spillway": FIXED | section}})


def plan(name, model, *, layers=6, context=4096, micro=1, windows=8, flags=(), **section):
    PLANS.append({
        "name": name, "model": model, "flags": ["--layers", str(layers), *flags],
        "config": {"train_micro_batch_size_per_gpu": micro,
                   "gradient_accumulation_steps": windows // micro,
                   "spillway": {"compute": "bf16", "context": context, **section}}})


def tiers():
    run("state on the device", state_home="device", covers=["state device"])
    run("state on the host, 2 threads", compute_threads=2, covers=["state host", "resident"])
    run("state on disk", flags=DISK, covers=["state nvme", "resident"])
    run("state in the run's folder", "llama", state_home="nvme", covers=["state nvme"])
    run("state on two drives, io posix", "llama", flags=(*DISK, "--nvme", "other"),
        io_engine="posix", covers=["state nvme"])
    run("streamed, 2 threads", "llama", residency="none", compute_threads=2,
        covers=["state host", "streamed"])
    run("streamed, state on disk, io aio", flags=DISK, residency="none", io_engine="aio",
        covers=["state nvme", "streamed"])
    run("streamed, prefetch 0", "gpt2-untied", residency="none", prefetch=0, covers=["streamed"])
    run("streamed, prefetch 3, state on disk", "llama", residency="none", prefetch=3, flags=DISK,
        io_engine="uring", covers=["streamed", "state nvme"])
    run("state shared by host and disk", "llama", residency="none", state_home="auto",
        host_memory="2000KiB", covers=["state host", "state nvme"])
    run("parameters partly on the device", "llama-deep", residency="auto", device_memory="1500KiB",
        host_link_gbps=0.5, covers=["resident", "streamed"])
    run("parameters and state by budget", "gpt2-deep", residency="auto", state_home="auto",
        device_memory="1600KiB", host_memory="3200KiB", host_link_gbps=0.5,
        covers=["resident", "streamed", "state host", "state nvme"])
    run("what the planner chooses", "qwen3", counted=False, residency="auto", state_home="auto",
        checkpointing="auto", activations="auto", gradient_sums="auto", commit_every=0)


def numbers():
    for form in ("fp32", "split", "bf16", "int8"):
        run(f"bf16, {form} state on the host", "llama", compute="bf16", state_format=form)
        run(f"bf16, {form} state on disk, streamed", compute="bf16", state_format=form,
            residency="none", flags=DISK, covers=["state nvme", "streamed"])
    run("bf16, split state on the device", "qwen2", compute="bf16", state_home="device",
        covers=["state device"])
    run("bf16, int8 state on the device", "qwen3", compute="bf16", state_format="int8",
        state_home="device", covers=["state device"])
    run("fp16, dynamic scale that overflows", "llama", steps=12, flags=DISK,
        config={"fp16": {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 2,
                         "hysteresis": 1}})
    run("fp16, static scale, streamed, 2 threads", residency="none", compute_threads=2,
        config={"fp16": {"enabled": True, "loss_scale": 128}})
    for isa in ("scalar", "portable", "avx2"):
        run(f"one update thread, by {isa}", compute="bf16", state_format="bf16", isa=isa, threads=1)


def optimizers():
    run("Adam with L2 decay", config={"optimizer": optimizer("Adam", adam_w_mode=False)})
    run("AdamW without bias correction, all decayed", "llama", decay="all",
        config={"optimizer": optimizer("AdamW", bias_correction=False, eps=1e-6)})
    run("Adagrad, warm-up and cosine", "gpt2-untied", flags=DISK, config={
        "optimizer": optimizer("Adagrad"),
        "scheduler": scheduler("Cosine", warmup_num_steps=2, total_num_steps=6, min_lr=1e-4)})
    run("Lion, bf16, WSD", "llama", compute="bf16", config={
        "optimizer": optimizer("Lion", lr=1e-3),
        "scheduler": scheduler("WSD", warmup_num_steps=1, total_num_steps=6, decay_num_steps=3)})
    run("SGD with momentum, OneCycle", residency="none", config={
        "optimizer": optimizer("SGD", lr=0.1, momentum=0.9),
        "scheduler": scheduler("OneCycle", cycle_min_lr=0.01, cycle_max_lr=0.1,
                               cycle_first_step_size=3, cycle_momentum=False)})
    run("SGD without momentum, int8 state, WarmupDecayLR", compute="bf16", state_format="int8",
        config={"optimizer": optimizer("SGD", lr=0.1),
                "scheduler": scheduler("WarmupDecayLR", warmup_num_steps=2, total_num_steps=6)})
    run("no clipping, windows in sequence, linear", "mistral", order="sequential", config={
        "gradient_clipping": 0, "scheduler": scheduler("Linear", total_num_steps=6)})
    run("clipped hard, int8 Adagrad on disk", compute="bf16", state_format="int8", flags=DISK,
        config={"gradient_clipping": 0.01, "optimizer": optimizer("Adagrad"),
                "scheduler": scheduler("LRRangeTest", lr_range_test_step_size=2)})


def passes():
    run("one window a step", windows=1, micro=1)
    run("3 micro-batches", "llama", micro=1, windows=3, residency="none")
    run("3 micro-batches, one through all layers first", micro=1, windows=3, residency="none",
        work_order="micro_batch_major", covers=["streamed"])
    run("micro-batch first, state on disk", "llama", micro=2, windows=6, flags=DISK,
        work_order="micro_batch_major", tile_parameters=4096)
    for rounds, sums in ((2, "device"), (2, "host"), (4, "device"), (4, "host")):
        run(f"{rounds} rounds, sums on the {sums}", "llama", micro=1, windows=12, rounds=rounds,
            residency="none", gradient_sums=sums, covers=[f"sums {sums}"])
    run("2 rounds, bf16, sums on the host, state on disk", compute="bf16", micro=1, windows=6,
        rounds=2, gradient_sums="host", flags=DISK, covers=["sums host", "state nvme"])
    run("2 rounds, micro-batch first, state on the device", "llama", micro=1, windows=4, rounds=2,
        state_home="device", work_order="micro_batch_major", covers=["state device"])


def activations():
    run("recomputed", "llama", checkpointing="recompute", covers=["recomputed"])
    run("kept, streamed, bf16, 2 threads", "qwen2", compute="bf16", residency="none",
        compute_threads=2, covers=["kept"])
    run("saved activations partly on the host", "llama", checkpointing="offload", micro=1,
        windows=3, device_memory="700KiB", residency="none", covers=["offloaded"])
    run("saved activations on the host, micro-batch first", "llama", checkpointing="offload",
        micro=1, windows=3, device_memory="1000KiB", residency="none", rounds=1,
        work_order="micro_batch_major", covers=["offloaded"])
    run("boundaries on the host", "llama", activations="host", micro=1, windows=3,
        checkpointing="recompute", covers=["boundaries host"])
    run("boundaries on disk", "llama", activations="nvme", micro=1, windows=3, flags=DISK,
        checkpointing="recompute", covers=["boundaries nvme"])
    run("boundaries on disk, micro-batch first, 2 rounds", activations="nvme", micro=1, windows=4,
        rounds=2, work_order="micro_batch_major", flags=DISK, checkpointing="recompute",
        covers=["boundaries nvme"])
    run("boundaries on the host, tight", "llama", activations="host", micro=1, windows=8,
        checkpointing="recompute", residency="none", device_memory="536KiB", compute_threads=2,
        covers=["boundaries host"])
    run("boundaries partly on the host", "gpt2-untied", activations="auto", micro=4,
        windows=16, residency="none", checkpointing="recompute", host_link_gbps=0.5,
        compute_threads=2, device_memory="1020KiB", covers=["boundaries host", "boundaries device"])


def tiles():
    # From the usual seed these steps amplify a rounding tenfold each: a GPU's sums in another order
    # are 1.2e-4 of the loss away at step 5, and 1e-7 from this one.
    run("tiles, resident, 2 threads", "wide", operator_tile=65536, micro=1, windows=2,
        compute_threads=2, seed=5)
    run("tiles, streamed", "wide", operator_tile=65536, micro=1, windows=3, residency="none",
        checkpointing="recompute", covers=["streamed", "recomputed"])
    run("small tiles, bf16, state on disk, 2 rounds", "wide", operator_tile=16384, micro=1,
        windows=4, rounds=2, compute="bf16", residency="none", flags=DISK, gradient_sums="host",
        covers=["state nvme"])
    run("tiles, int8, micro-batch first", "wide", operator_tile=32768, micro=1, windows=3,
        compute="bf16", state_format="int8", residency="none", work_order="micro_batch_major")


def life():
    """How a run goes on: commits, kept checkpoints, ends of every kind, and other tiers then."""
    monitors = {"csv_monitor": {"enabled": True}, "tensorboard": {"enabled": True}}
    run("commits every step, CSV", "llama-tied", commit_every=1, config=monitors)
    run("commits at the end alone", commit_every=1000, residency="none")
    run("kept checkpoints", "llama", steps=8, save_every=3, keep=2, residency="none")
    run("kept checkpoints, bf16 on disk", steps=8, save_every=2, keep=3, compute="bf16", flags=DISK,
        commit_every=3)
    run("kept checkpoints, state on the device", save_every=2, keep=3, state_home="device",
        covers=["state device"])
    run("stopped and resumed", "llama-tied", parts=[{"steps": 3}, {"steps": 8}])
    run("resumed on another tier each time", "llama", compute="bf16", parts=[
        {"steps": 3}, {"steps": 5, "section": {"state_home": "nvme", "residency": "none"}},
        {"steps": 8, "section": {"work_order": "micro_batch_major", "checkpointing": "recompute",
                                 "state_home": "device"}}])
    run("killed and resumed, state on disk", steps=12, flags=DISK, commit_every=1, disk_gbps=0.05,
        parts=[{"steps": 12, "kill": 3}, {"steps": 12, "kill": 6}, {"steps": 12}])
    run("killed and resumed, bf16 streamed, rare commits", "llama", compute="bf16",
        residency="none", commit_every=3, save_every=4, host_link_gbps=0.02,
        parts=[{"steps": 12, "kill": 5}, {"steps": 12}])
    run("from a kept checkpoint", "llama", compute="bf16", state_format="int8", save_every=2,
        parts=[{"steps": 5}, {"steps": 8, "start": "run/checkpoints/step-4", "flags": DISK}])
    run("from another run", "qwen3", parts=[{"steps": 4}, {"steps": 8, "start": "run"}])
    run("from exported weights", "mistral", compute="bf16",
        parts=[{"steps": 4}, {"steps": 4, "start": "weights"}])


def plans():
    plan("all by the planner", "llama-3-8b")
    plan("the GPU is short", "llama-3-8b", layers=16, flags=["--device-memory", "9GB"])
    plan("host and GPU are short", "llama-3-8b", layers=16,
         flags=["--device-memory", "9GB", "--host-memory", "24GB"])
    plan("saved activations shared with the host", "qwen2.5-7b", layers=12, context=8192, windows=4,
         flags=["--device-memory", "24GB"])
    plan("rounds", "llama-2-7b", windows=16, rounds=4, flags=["--device-memory", "12GB"])
    plan("micro-batch first", "mistral-7b", work_order="micro_batch_major", residency="none",
         flags=["--no-commits"])
    plan("int8 state on disk", "llama-3-8b", state_format="int8", state_home="nvme", layers=12)
    plan("boundaries on disk", "llama-3-8b", activations="nvme", state_home="nvme", windows=16,
         flags=["--no-commits"])
    plan("tiles of a large layer", "llama-3-70b", layers=3, operator_tile=33554432, windows=2,
         flags=["--device-memory", "9GB"])
    plan("many layers", "llama-3-8b", layers=100, windows=4)


for table in (tiers, numbers, optimizers, passes, activations, tiles, life, plans):
    table()
