"""Optimizers for a training loop of PyTorch whose state does not fit.

    from spillway.torch import OffloadedAdamW
    optimizer = OffloadedAdamW(model.parameters(), lr=3e-4, nvme=["/disk"])

The loop stays as it is: `loss.backward()` hands each gradient over as soon as it is ready and frees
it, and `optimizer.step()` updates all parameters in one pass. Master weights and moments live in
host memory or, with `nvme`, on disk. `offload_model` streams the parameters of a model's blocks
through a part of the device. `plan` says beforehand what all that takes.
"""
import torch

if torch.__version__ < (2, 4):
    raise ImportError("spillway.torch needs PyTorch 2.4 or later, and this is "
                      f"{torch.__version__}: pip install --upgrade torch")

# noqa of each: the version has what they need.
from spillway.torch import accelerator, comm, zero  # noqa: E402
from spillway.torch._deepspeed_names import MODULE, refusal  # noqa: E402
from spillway.torch._forecast import Forecast, plan  # noqa: E402
from spillway.torch.accelerator import get_accelerator  # noqa: E402
from spillway.torch.checkpoints import load_checkpoint  # noqa: E402
from spillway.torch.engine import (  # noqa: E402
    Engine,
    Schedule,
    add_config_arguments,
    init_distributed,
    initialize,
)
from spillway.torch.optimizers import (  # noqa: E402
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedOptimizer,
    OffloadedSGD,
)
from spillway.torch.streaming import offload_model  # noqa: E402

DeepSpeedEngine = Engine  # for programs that ask what an engine is

__all__ = ["DeepSpeedEngine", "Engine", "Forecast", "OffloadedAdagrad", "OffloadedAdam",
           "OffloadedAdamW", "OffloadedLion", "OffloadedOptimizer", "OffloadedSGD", "Schedule",
           "accelerator", "add_config_arguments", "comm", "get_accelerator", "init_distributed",
           "initialize", "load_checkpoint", "offload_model", "plan", "zero"]


def __getattr__(name: str) -> object:
    if name in MODULE:
        raise refusal(name, "deepspeed.", MODULE[name])
    raise AttributeError(f"module {__name__} has no {name}")
