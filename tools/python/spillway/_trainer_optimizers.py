"""What the names of `TrainingArguments.optim` are here: an optimizer of ours, or what to use."""
from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch import OffloadedAdagrad, OffloadedAdamW, OffloadedLion, OffloadedSGD
from spillway.torch.optimizers import OffloadedOptimizer

_INT8 = ("moments of all parameters, small ones too, are int8 with an fp32 scale for every 256, "
         "and bfloat16 parameters have fp32 masters")
_FROM_MEMORY = "state is in host memory, or on disk with nvme; nothing is paged"


class _Choice(NamedTuple):
    kind: type[OffloadedOptimizer]
    state_format: str | None = None  # None: that of the options
    differs: str = ""                # from what the name means elsewhere


_TABLE = {
    "adamw_torch": _Choice(OffloadedAdamW), "adamw_torch_fused": _Choice(OffloadedAdamW),
    "adamw_torch_xla": _Choice(OffloadedAdamW), "adamw_torch_npu_fused": _Choice(OffloadedAdamW),
    "adamw_apex_fused": _Choice(OffloadedAdamW), "adamw_hf": _Choice(OffloadedAdamW),
    "adamw_torch_8bit": _Choice(OffloadedAdamW, "int8", _INT8),
    "adamw_bnb_8bit": _Choice(OffloadedAdamW, "int8", _INT8),
    "adamw_8bit": _Choice(OffloadedAdamW, "int8", _INT8),
    "paged_adamw_8bit": _Choice(OffloadedAdamW, "int8", f"{_INT8}; {_FROM_MEMORY}"),
    "paged_adamw_32bit": _Choice(OffloadedAdamW, None, _FROM_MEMORY),
    "paged_adamw": _Choice(OffloadedAdamW, None, _FROM_MEMORY),
    "lion_32bit": _Choice(OffloadedLion),
    "lion_8bit": _Choice(OffloadedLion, "int8", _INT8),
    "paged_lion_32bit": _Choice(OffloadedLion, None, _FROM_MEMORY),
    "paged_lion_8bit": _Choice(OffloadedLion, "int8", f"{_INT8}; {_FROM_MEMORY}"),
    "adagrad": _Choice(OffloadedAdagrad), "sgd": _Choice(OffloadedSGD),
}

#: What comes nearest to a name that is refused.
_SHORT = 'optim="adamw_torch" with spillway={"state_format": "int8"}, which has 4.03 bytes each'
_EQUIVALENTS = {
    "adamw_torch_4bit": _SHORT,
    "adamw_anyprecision": 'optim="adamw_torch" with spillway={"state_format": "bf16"}',
    "adafactor": _SHORT, "lomo": _SHORT, "adalomo": _SHORT, "galore": _SHORT, "apollo": _SHORT,
}
_OTHERWISE = 'optim="adamw_torch"'

#: Arguments of `optim_args` that change something, by optimizer, as the Trainer reads them.
_ARGUMENTS = {OffloadedSGD: ("momentum", "dampening", "weight_decay", "nesterov"),
              OffloadedAdagrad: ("lr_decay", "weight_decay", "eps")}


def _equivalent(name: str) -> str:
    return next((said for key, said in _EQUIVALENTS.items() if name.startswith(key)), _OTHERWISE)


def _more(kind: type[OffloadedOptimizer], said: str | None) -> dict[str, Any]:
    """The arguments that `optim_args` gives. Raises for one that the optimizer has not."""
    more: dict[str, Any] = {}
    for pair in (said or "").replace(" ", "").split(","):
        key, _, value = pair.partition("=")
        if not pair:
            continue
        if key not in _ARGUMENTS.get(kind, ()):
            known = ", ".join(_ARGUMENTS.get(kind, ())) or "none"
            raise InvalidArgumentError(
                f"optim_args has {pair}, which {kind.__name__} does not take from there (it takes "
                f"{known}); betas, eps and weight decay of AdamW and Lion are adam_beta1, "
                "adam_beta2, adam_epsilon and weight_decay of the arguments")
        try:
            more[key] = value.lower() in ("true", "1", "yes") if key == "nesterov" else float(value)
        except ValueError:
            raise InvalidArgumentError(f"optim_args has {pair}, which is no number") from None
    return more


def _name(args: Any) -> str:
    return str(getattr(args.optim, "value", args.optim))


def named_by(args: Any) -> tuple[type[OffloadedOptimizer] | None, dict[str, Any]]:
    """Returns the optimizer that the TrainingArguments name and its hyperparameters beside lr; None
    for a name that is refused."""
    if _name(args) not in _TABLE:
        return None, {}
    kind = _TABLE[_name(args)].kind
    hyperparameters: dict[str, Any] = {}
    if kind in (OffloadedAdamW, OffloadedLion):
        hyperparameters["betas"] = (args.adam_beta1, args.adam_beta2)
    if kind is OffloadedAdamW:
        hyperparameters["eps"] = args.adam_epsilon
    return kind, hyperparameters | _more(kind, args.optim_args)


def choose(args: Any, options: dict[str, Any],
           ) -> tuple[type[OffloadedOptimizer], dict[str, Any], dict[str, Any]]:
    """Returns the optimizer that the TrainingArguments name, its hyperparameters beside lr, and the
    options with the state format that the name means. A format in the options comes first."""
    name = _name(args)
    kind, hyperparameters = named_by(args)
    if kind is None:
        raise NotSupportedError(
            f'optim is "{name}", which Spillway has not; use {_equivalent(name)}. It has '
            f'{", ".join(_TABLE)}')
    _, state_format, differs = _TABLE[name]
    if state_format is not None and options.setdefault("state_format", state_format) != (
            state_format):
        differs = f'state_format="{options["state_format"]}" of the options is used'
    if differs:
        warnings.warn(f'optim "{name}": {differs}', stacklevel=4)
    return kind, hyperparameters, options
