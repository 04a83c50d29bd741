"""The native engine: `plan` says what fits where, `train` trains, `export` writes what it made."""
from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spillway._documents import text_of, to_text
from spillway._load import native
from spillway._paths import Path, folders_of, name_or_path, path_of
from spillway.errors import Interrupted, InvalidArgumentError
from spillway.reports import Export, Plan, Report, Step


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _settings(options: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The options as the texts that a command line would have; what is None is left out."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, variable in (("device", "SPILLWAY_DEVICE"), ("isa", "SPILLWAY_ISA")):
        if os.environ.get(variable):
            given.setdefault(key, os.environ[variable])
    if "nvme" in given:
        given["nvme"] = folders_of(given["nvme"], "nvme")
    return [(key, [_text(each) for each in value] if isinstance(value, (list, tuple))
             else [_text(value)]) for key, value in given.items()]


@contextlib.contextmanager
def _model_file(model: Any) -> Iterator[str]:
    """A name or a path stays what it is; a configuration in memory becomes a file."""
    if model is None or isinstance(model, (str, os.PathLike)):
        yield name_or_path(model, "model")
        return
    document = model.to_dict() if hasattr(model, "to_dict") else model
    if not isinstance(document, Mapping):
        raise InvalidArgumentError(
            f"model is of type {type(model).__name__}; give a name, a path of a config.json, a "
            "dict, or a configuration of transformers")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(to_text(document))
        yield str(path)


@contextlib.contextmanager
def _ask(config: Path | Mapping[str, Any], model: Any, layers: int, checkpoint: Path | None,
         options: Mapping[str, Any], run: Path, machine: Path | None = None) -> Iterator[Any]:
    if model is not None and checkpoint is not None:
        raise InvalidArgumentError("model excludes checkpoint, which has an architecture of its "
                                   f"own: leave one out; checkpoint is {checkpoint}")
    ask = native.Ask()
    ask.config, ask.origin = text_of(config)
    ask.settings = _settings(options)
    ask.layers = layers
    ask.checkpoint = name_or_path(checkpoint, "checkpoint")
    ask.run = path_of(run, "run")
    ask.machine = name_or_path(machine, "machine")
    with _model_file(model) as path:
        ask.model = path
        yield ask


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def plan(config: Path | Mapping[str, Any], *, model: Any = None, layers: int = 0,
         checkpoint: Path | None = None, run: Path = ".", machine: Path | None = None,
         **options: Any) -> Plan:
    """Says what of a training step lives where, and how long a step will take.

    `config` is a configuration: the path of DeepSpeed's JSON with a section `spillway`, or a dict.
    The architecture is `model` (a config.json of Hugging Face, its dict, a configuration of
    transformers, or a well-known name) or that of `checkpoint` (a directory of Hugging Face, a
    model of the hub in the local cache, or a run); `layers` replaces its number of layers. The
    run's state would lie on the disk of the folder `run`. `machine` is another machine, by name
    (docs/machines.md) or by a file that describes it; without it, this one is measured in seconds.
    Other arguments are keys of the section `spillway`: `device_memory="16GiB"`, `nvme=["/disk"]`.

    Raises `DoesNotFitError`, which names the tier, the bytes and what would make it fit.
    """
    with _ask(config, model, layers, checkpoint, options, run, machine) as ask:
        made = native.plan(ask, _warn)
    return Plan.from_json(made.document, made.text, made.page)


class _Watcher:
    """Hears of the steps of a run: keeps them, and shows a bar where tqdm is installed."""

    def __init__(self, progress: bool, on_step: Callable[[Step], Any] | None,
                 page: Callable[[], str]) -> None:
        self.progress = progress
        self.page = page
        self.on_step = on_step
        self.plan: Plan | None = None
        self.history: list[Step] = []
        self.bar: Any = None

    def planned(self, document: str, text: str, first_step: int, steps: int) -> None:
        self.plan = Plan.from_json(document, text, self.page)
        if not self.progress:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self.bar = tqdm(total=steps, initial=first_step - 1, unit="step")

    def stepped(self, *numbers: Any) -> None:
        step = Step(*numbers)
        self.history.append(step)
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{step.loss:.4f}", refresh=False)
            self.bar.update()
        if self.on_step is not None:
            self.on_step(step)

    def evaluated(self, step: int, loss: float) -> None:
        self.noted(f"step {step}: validation loss {loss:.4f}", warn=False)

    def saved(self, step: int, checkpoint: str) -> None:
        self.noted(f"step {step}: kept in {checkpoint}", warn=False)

    def noted(self, text: str, warn: bool = True) -> None:
        if self.bar is not None:
            self.bar.write(text)
        elif warn:
            _warn(text)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def train(config: Path | Mapping[str, Any], *, data: Path, run: Path, model: Any = None,
          layers: int = 0, checkpoint: Path | None = None, resume: bool = False,
          progress: bool = True, on_step: Callable[[Step], Any] | None = None,
          **options: Any) -> Report:
    """Trains a model with the native engine and returns the run in numbers.

    `data` is a folder with train.bin, val.bin and meta.json, as `spillway data` makes it. The run
    keeps its state, metrics and configuration in the folder `run`; with `resume` it goes on from
    its last committed step. It starts from `checkpoint`, or with random weights for `model`; see
    `plan` for both, for `config`, and for other arguments (`steps=1000`, `seed=7`). `on_step` is
    called with a `Step` after each step. A bar is shown where tqdm is installed, unless `progress`
    is False.

    Ctrl-C ends the run after the step that runs, commits it and raises `Interrupted`, which holds
    the report. So does whatever `on_step` raises, which is raised again. Other threads of the
    interpreter go on meanwhile.
    """
    page = functools.partial(native.report_page, path_of(run, "run"))
    watcher = _Watcher(progress, on_step, page)
    try:
        with _ask(config, model, layers, checkpoint, options, run) as ask:
            ask.data, ask.resume = path_of(data, "data"), resume
            document, text, raised = native.train(ask, watcher)
    finally:
        watcher.close()
    report = Report.from_json(document, text, page)
    report.plan, report.history = watcher.plan, watcher.history
    if isinstance(raised, KeyboardInterrupt):
        raise Interrupted(report) from raised
    if raised is not None:
        raise raised
    return report


def export(run: Path, directory: Path, *, dtype: str | None = None,
           max_shard_size: str | int = "5GB", replace: bool = False) -> Export:
    """Writes the last committed step of `run` as a checkpoint of Hugging Face, with its tokenizer.

    transformers loads the folder `directory`, which is made; what is there already is replaced with
    `replace` alone. Weights are of `dtype` ("fp32", "bf16" or "fp16"), by default that in which the
    run computes. No file of weights is larger than `max_shard_size`. It takes memory for a tile of
    the run, which may be training meanwhile. After Ctrl-C nothing is left of it.
    """
    return Export(*native.export(path_of(run, "run"), path_of(directory, "directory"),
                                 dtype or "", str(max_shard_size), replace))
