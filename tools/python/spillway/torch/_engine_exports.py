"""The engine's model for other programs: state dicts and files of torch."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import torch

from spillway._paths import Path, path_of
from spillway.errors import InvalidArgumentError, IoError
from spillway.torch._engine_settings import WithSettings
from spillway.torch._ranks import SAVES_TAG


@contextlib.contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """Gives a file to write, which replaces one that is there once it is whole."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(f"{path}.part", "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.part", path)
        except BaseException:  # the room is wanted, on a full disk most of all
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.part")
            raise
    except OSError as error:
        raise IoError(f"{path} cannot be written: {error.strerror}; one that was there is as it "
                      "was", error.errno or 0) from error


class WithExports(WithSettings):
    """An engine that gives and takes its model's values."""

    def module_state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False,
                          exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        """Returns the model's state dict. Updates that were deferred are waited for."""
        self.optimizer.synchronize()
        values = self.module.state_dict(destination=destination, prefix=prefix,
                                        keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    values.pop(prefix + name, None)
        return values

    def load_module_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True,
                               custom_load_fn: Callable[..., Any] | None = None,
                               fetch_z3_params: bool = False) -> None:
        """Takes the state dict `checkpoint["module"]` into the model; masters become these values.
        `fetch_z3_params` changes nothing: parameters are whole."""
        if "module" not in checkpoint:
            raise InvalidArgumentError(
                f"checkpoint has {', '.join(map(str, checkpoint)) or 'nothing'}, and no module: "
                'give {"module": state_dict}, or call engine.module.load_state_dict')
        if custom_load_fn is not None:
            custom_load_fn(src=checkpoint["module"], dst=self.module)
        else:
            self.module.load_state_dict(checkpoint["module"], strict=strict)

    def save_16bit_model(self, save_dir: Path, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Writes the model's state dict, in the model's precision, as torch.save does. All ranks
        call it, and the first one writes."""
        folder = path_of(save_dir, "save_dir")
        with self.together(SAVES_TAG, f"{save_filename}: writes"):
            values = self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)
            if self.is_first:
                with replaced(os.path.join(folder, save_filename)) as file:
                    torch.save(values, file)
        return True

    def save_fp16_model(self, save_dir: Path, save_filename: str = "pytorch_model.bin") -> bool:
        """The old name of `save_16bit_model`."""
        return self.save_16bit_model(save_dir, save_filename)
