"""Optimizers for a training loop of PyTorch whose state does not fit.

    from spillway.torch import OffloadedAdamW
    optimizer = OffloadedAdamW(model.parameters(), lr=3e-4, nvme=["/disk"])

The loop stays as it is: `loss.backward()` hands each gradient over as soon as it is ready and frees
it, and `optimizer.step()` updates all parameters in one pass. Master weights and moments live in
host memory or, with `nvme`, on disk. `offload_model` streams the parameters of a model's blocks
through a part of the device.
"""
from spillway.torch.engine import (
    Engine,
    Schedule,
    add_config_arguments,
    init_distributed,
    initialize,
)
from spillway.torch.optimizers import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedOptimizer,
    OffloadedSGD,
)
from spillway.torch.streaming import offload_model

__all__ = ["Engine", "OffloadedAdagrad", "OffloadedAdam", "OffloadedAdamW", "OffloadedLion",
           "OffloadedOptimizer", "OffloadedSGD", "Schedule", "add_config_arguments",
           "init_distributed", "initialize", "offload_model"]
