"""Parameters beside which those of an optimizer have memory of their own."""
from __future__ import annotations

import gc
import weakref

import torch

from spillway.errors import InvalidArgumentError
from spillway.torch._quantized import is_wrapper
from spillway.torch._registered import Others, Registered, check_memory, names_of
from spillway.torch._taken_data import is_plain


def _of_program() -> list[weakref.ref]:
    """Finds the plain parameters of all models in the process, which takes a while."""
    return [weakref.ref(each) for each in gc.get_objects()
            if is_plain(each) and each.layout == torch.strided]


class Beside:
    """The parameters of an optimizer's groups, frozen ones too, and those of the program.

    The program is searched when parameters come, and once for those that are set later, so that a
    loop which sets them in each step stays as fast as it is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._found: list[weakref.ref] | None = None

    def check(self, parameters: list[Registered], come: bool) -> None:
        """Raises if a parameter lies in memory of another one, where other tensors have memory of
        one; `come`: they come to the optimizer now."""
        if come or self._found is None:
            self._found = _of_program()
        try:
            check_memory(parameters, self._others())
        except InvalidArgumentError:
            gc.collect()  # of models that nobody has any more
            check_memory(parameters, self._others())
        if come:
            self._found = None

    def _others(self) -> list[Others]:
        groups = self._optimizer().param_groups
        known = [(parameter, name) for group, names in zip(groups, names_of(groups), strict=True)
                 for parameter, name in zip(group["params"], names, strict=True)
                 if not is_wrapper(parameter)]
        seen = {id(parameter) for parameter, _ in known}
        found = [parameter for each in self._found if (parameter := each()) is not None]
        return known + [(parameter, "a parameter that is not in the optimizer")
                        for parameter in found if id(parameter) not in seen]
