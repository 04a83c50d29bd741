"""Models of a Trainer that pass through a part of the device that it computes on."""
from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import AutocastKwargs, DynamoBackend

from spillway._trainer_ranks import group_of_ranks
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedSGD, offload_model
from spillway.torch._alone import processes

#: What `spillway` of a Trainer says of streaming: arguments of `offload_model`.
_KEYS = ("device_memory", "activation_memory", "activation_window", "blocks", "frozen",
         "frozen_nvme")


def take_streaming(options: dict[str, Any], model: Any) -> dict[str, Any]:
    """Takes what is said of streaming out of `options` and returns it; nothing: `model`, that of
    the Trainer if it is there already, stays whole, or is streamed as the program has said."""
    said = {key: options.pop(key, None) for key in _KEYS}
    taken = {key: value for key, value in said.items() if value is not None}
    if taken.get("frozen") == "nvme" and "frozen_nvme" not in taken and options.get("nvme"):
        taken["frozen_nvme"] = options["nvme"]  # also of models that have no state
    if taken and "device_memory" not in taken:
        raise InvalidArgumentError(
            f"{next(iter(taken))} is given without device_memory, by which the Trainer streams its "
            'model: give both, as in spillway={"device_memory": "20GB", ...}')
    if taken and is_streamed(model):
        raise InvalidArgumentError(
            f"{', '.join(taken)} of the Trainer is given, and its model is offloaded already: "
            "leave it out, and the model is streamed as it was told, or give a new model")
    return taken


def of_any_model(streaming: dict[str, Any]) -> list[str]:
    """Returns the keys that hold for a reference model too."""
    return ["device_memory", *(key for key in ("frozen", "frozen_nvme") if key in streaming)]


def is_streamed(model: Any) -> bool:
    """Whether `offload_model` was given a model."""
    return "_spillway_streaming" in getattr(model, "__dict__", {})


def check_streaming(args: Any, accelerator: Any) -> None:
    """Raises for what a Trainer cannot do with a model that is streamed."""
    compiles = accelerator.state.dynamo_plugin.backend != DynamoBackend.NO
    offloads = (getattr(args, "activation_checkpointing_kwargs", None) or {}).get("offload")
    wishes = {
        "torch_compile": (
            args.torch_compile or compiles,
            "what is compiled reads parameters where they were; leave torch_compile out"),
        "bf16_full_eval or fp16_full_eval": (
            args.bf16_full_eval or args.fp16_full_eval,
            "the optimizer keeps the model in one element type; convert it before, as by "
            "model.to(torch.bfloat16)"),
        f"{args.n_gpu} GPUs in one process": (
            args.n_gpu > 1, "DataParallel copies the model to each; let the process see one, as by "
            "CUDA_VISIBLE_DEVICES=0"),
        "activation_offloading or activation_checkpointing_kwargs offload": (
            getattr(args, "activation_offloading", False) or offloads,
            'leave it out, and give spillway={"activation_memory": ...}'),
        "sync_ref_model": (
            getattr(args, "sync_ref_model", False), "nobody sees what is written through .data of "
            "a streamed reference model; leave it out")}
    for what, (is_wished, remedy) in wishes.items():
        if is_wished:
            raise NotSupportedError(
                f"device_memory, or a model that is offloaded, with {what} is not supported: "
                f"{remedy}")


def keep_no_casts(accelerator: Any) -> None:
    """Makes autocast forget casts of parameters at once: it would keep those of all blocks on the
    device until the forward pass ends."""
    if accelerator.autocast_handler is None:
        accelerator.autocast_handler = AutocastKwargs()
    accelerator.autocast_handler.cache_enabled = False


def stream(model: torch.nn.Module, streaming: dict[str, Any], device: torch.device) -> None:
    """Offloads a model, once. If it is evaluated before an optimizer trains it, or is never
    trained, such as the reference model of DPO, its parameters are kept without state."""
    if not is_streamed(model):
        offload_model(model, **streaming, device=device)
    if not hasattr(model, "_spillway_first_pass"):
        model._spillway_first_pass = FirstPass(model)


class FirstPass:
    """Keeps the parameters of an offloaded model from its first forward pass on, if no optimizer
    keeps them by then, and until one does."""

    def __init__(self, model: torch.nn.Module) -> None:
        # Programs call parts, such as the base model of adapters in `generate`.
        self._hooks = [part.register_forward_pre_hook(lambda *_: self._begin(model))
                       for part in model.modules()]

    def _begin(self, model: torch.nn.Module) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        if not model._spillway_streaming.has_keeper():
            keep_untrained(model)


def keep_untrained(model: torch.nn.Module) -> None:
    """Keeps the parameters of an offloaded model as frozen ones."""
    streaming = model._spillway_streaming
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Its optimizer keeps what is frozen beside it.
    anchor = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    anchor._spillway_streaming = (streaming, None)
    model.requires_grad_(False)
    try:
        ranks = {"process_group": group_of_ranks(streams=True)} if processes() > 1 else {}
        streaming.until_trained = OffloadedSGD([anchor], lr=0.0, threads=1, **ranks)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
