"""What the reference trainer and Spillway are compared on: every pair of choices, in few runs."""
import dataclasses
import itertools
import random

import torch

from model import Shape
from trainer import Recipe
from window_order import shuffled_window

SEED = 1234
STEPS = 20
WINDOWS = 150  # of the data: fewer than 20 steps draw, so that a second epoch begins

# Wavelengths of a head of 12 with theta 10,000: 6.3, 29, 135, 628, ... With these bands the first
# is kept, the second interpolated, and the others are slowed down.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

FACTORS = {
    "family": ("gpt2", "llama", "mistral", "qwen2", "qwen3"),
    "optimizer": ("AdamW", "Adam", "Adagrad", "Lion", "SGD"),
    "compute": ("fp32", "bf16", "fp16", "fp16 dynamic"),
    "rounds": (1, 2, 4),
    "clipped": (False, True),
    "decay": ("matrices", "all"),
    "tied": (True, False),
    "order": ("sequential", "shuffled"),
    "state_format": ("fp32", "split"),
}
LEARNING_RATES = {"AdamW": 2e-3, "Adam": 2e-3, "Adagrad": 1e-2, "Lion": 5e-4, "SGD": 5e-2}


# Above these the gradients of the first steps have their norms, and below them those of the last.
CLIPS = {"gpt2": 1.0, "llama": 1.85, "mistral": 1.6, "qwen2": 1.75, "qwen3": 1.9}


# Tokens of the data that transformers gives no gradient from the input, by family.
PADDING = {"mistral": 2, "qwen3": 0}


def allowed(choice):
    """Whether a partial choice can be part of a run. The split format needs bf16 parameters."""
    return choice.get("state_format") != "split" or choice.get("compute", "bf16") == "bf16"


def pairs_of(choice):
    return set(itertools.combinations(sorted(choice.items()), 2))


def all_pairs():
    """Every pair of values of two factors that can meet."""
    pairs = set()
    for (a, of_a), (b, of_b) in itertools.combinations(sorted(FACTORS.items()), 2):
        for x, y in itertools.product(of_a, of_b):
            if allowed({a: x, b: y}):
                pairs.add(((a, x), (b, y)))
    return pairs


def covering_choices():
    """Greedily: the best of 200 random choices that hold a pair that is still missing."""
    generator = random.Random(1)
    missing, choices = all_pairs(), []
    while missing:
        wanted = dict(sorted(missing)[0])
        drawn = [{f: generator.choice(v) for f, v in FACTORS.items()} | wanted for _ in range(200)]
        choices.append(max(filter(allowed, drawn), key=lambda c: len(pairs_of(c) & missing)))
        missing -= pairs_of(choices[-1])
    return choices


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    shape: Shape
    recipe: Recipe
    order: str
    state_format: str
    operator_tile: int = 0
    activations: str = "auto"
    device_memory: str = ""  # too little for the activations inside layers, which the disk keeps

def make_case(number, choice):
    family, compute = choice["family"], choice["compute"]
    shape = Shape(family, tied=choice["tied"], rope=LLAMA3 if family == "llama" else None,
                  kv_heads={"gpt2": 4, "mistral": 1}.get(family, 2), pad=PADDING.get(family))
    recipe = Recipe(compute=compute[:4], optimizer=choice["optimizer"],
                    clip=CLIPS[family] if choice["clipped"] else 0.0,
                    lr=LEARNING_RATES[choice["optimizer"]], decay=choice["decay"],
                    rounds=choice["rounds"], loss_scale=1024.0 if compute == "fp16" else 0.0)
    parts = [f"{number:02}", family, recipe.optimizer, compute, f"rounds-{recipe.rounds}",
             "clipped" if choice["clipped"] else "", f"decay-{recipe.decay}",
             "tied" if shape.tied else "", choice["order"], choice["state_format"],
             "tiles" if "operator_tile" in choice else "",
             "saved-on-disk" if "device_memory" in choice else ""]
    name = "_".join(part.replace(" ", "-") for part in parts if part)
    return Case(name, shape, recipe, choice["order"], choice["state_format"],
                choice.get("operator_tile", 0), choice.get("activations", "auto"),
                choice.get("device_memory", ""))


def rounded_choices():
    """State that is rounded between steps, with every optimizer and family, and with either value
    of the rest."""
    for i, (form, optimizer) in enumerate(itertools.product(("bf16", "int8"),
                                                            FACTORS["optimizer"])):
        yield {"family": FACTORS["family"][(i + i // 5) % 5], "optimizer": optimizer,
               "compute": "bf16", "rounds": FACTORS["rounds"][i % 3], "clipped": i % 2 == 0,
               "decay": FACTORS["decay"][i // 2 % 2], "tied": i % 4 < 2,
               "order": FACTORS["order"][i // 3 % 2], "state_format": form}


def tiled_choices():
    """Matrices in tiles of a few rows, with a head of its own and a tied one."""
    for tied, compute, home in ((False, "fp32", "auto"), (True, "bf16", "nvme"),
                                (True, "fp32", "host")):
        yield {"family": "qwen3" if compute == "fp32" else "llama", "optimizer": "AdamW",
               "compute": compute, "rounds": 2, "clipped": True, "decay": "matrices",
               "tied": tied, "order": "shuffled", "state_format": "fp32", "operator_tile": 1500,
               "activations": home}


SAVED_ON_DISK = {"family": "qwen2", "optimizer": "AdamW", "compute": "bf16", "rounds": 2,
                 "clipped": True, "decay": "matrices", "tied": False, "order": "shuffled",
                 "state_format": "split", "device_memory": "425KiB"}

CASES = [make_case(number, choice) for number, choice in
         enumerate(itertools.chain(covering_choices(), rounded_choices(), tiled_choices(),
                                   [SAVED_ON_DISK]))]


def tokens_of(case):
    """A noisy cycle: something to learn, and windows that are told apart by their loss. The last
    tokens are too few for a window."""
    generator = torch.Generator().manual_seed(11)
    count = WINDOWS * case.shape.context + 1 + case.shape.context // 2
    noise = torch.rand(count, generator=generator) < 0.3
    drawn = torch.randint(0, case.shape.vocabulary, (count,), generator=generator)
    return torch.where(noise, drawn, torch.arange(count) * 7 % case.shape.vocabulary)


def order_of(case):
    """The window of the data that is drawn as the n-th."""
    if case.order == "sequential":
        return lambda n: n % WINDOWS
    return lambda n: shuffled_window(n, WINDOWS, SEED)
