"""The types of the package: all of its public symbols have some, and the documents' examples pass
the strict mode of pyright with them.

basedpyright is pyright with a node of its own, which pip installs.
"""
import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import spillway

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(spillway.__file__).parent
# DeepSpeed, which deepspeed_loop.py runs with too, has no types.
PROGRAMS = ("base_larger_than_memory", "fine_tune", "huggingface_trainer", "pytorch_loop",
            "quantized_base", "ranks_loop")

PAGES = ("deepspeed", "jax", "python", "python-ranks", "pytorch", "streaming", "trainer")

# What fragments of the documents take for granted.
GIVEN = """
from collections.abc import Iterable
from typing import Any
import torch
import transformers

model: torch.nn.Module
batches: Iterable[torch.Tensor]
batches_of_this_rank: Iterable[torch.Tensor]
loader: Iterable[torch.Tensor]
config: transformers.PretrainedConfig
args: transformers.TrainingArguments
data: torch.utils.data.Dataset[Any]
params: Any
def loss(model: Any, batch: Any) -> Any: ...
def generate(prompts: torch.Tensor, weights: dict[str, Any]) -> torch.Tensor: ...
"""
IMPORTS = {**{name: f"import {name}" for name in ("jax", "optax", "torch", "transformers")},
           "spillway": "import spillway.torch",
           **{name: f"from spillway.torch import {name}" for name in (
               "OffloadedAdamW", "load_checkpoint", "offload_model")},
           **{name: f"from peft import {name}" for name in ("LoraConfig", "get_peft_model")},
           "SpillwayTrainer": "from spillway.huggingface import SpillwayTrainer",
           **{name: f"from given import {name}" for name in re.findall(
               r"^(?:def )?(\w+)[:(]", GIVEN, re.MULTILINE)}}

# Functions that PyTorch, transformers and JAX do not annotate whole, and rules that follow from it.
PARTLY_KNOWN = {"backward", "from_config", "from_pretrained", "grad", "jit", "manual_seed",
                "save_pretrained", "train"}
FOLLOWING = ("reportUnknownArgumentType", "reportUnknownVariableType")


def pyright(*arguments, folder: pathlib.Path) -> dict:
    """Returns what pyright found, as its JSON."""
    # It asks the Python that is first on PATH where packages are.
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", *map(str, arguments)], cwd=folder,
        env={**os.environ, "PATH": path}, check=False, capture_output=True, encoding="utf-8")
    assert "{" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout)


def said(diagnostics: list[dict]) -> str:
    return "\n".join(f"{each.get('file', '')}:{each.get('range', {}).get('start', {})}: "
                     f"{each.get('rule', '')}: {each['message']}" for each in diagnostics)


def is_of_others(diagnostic: dict) -> bool:
    named = re.match(r'Type of "(\w+)" is partially unknown', diagnostic["message"])
    return (diagnostic.get("rule") == "reportUnknownMemberType" and named is not None
            and named[1] in PARTLY_KNOWN)


def blocks(document: pathlib.Path) -> list[str]:
    """The code of a document that is Python."""
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


def with_imports(code: str) -> str:
    """A fragment after the imports of what it takes for granted."""
    loaded, bound = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            given = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            targets = {each.id for target in node.targets for each in ast.walk(target)
                       if isinstance(each, ast.Name)}
            bound |= targets - given
    return "\n".join([IMPORTS[name] for name in sorted((loaded - bound) & IMPORTS.keys())]
                     + [code])


def test_every_public_symbol_has_a_known_type():
    answer = pyright("--verifytypes", "spillway", "--ignoreexternal", folder=PACKAGE.parent)
    report = answer["typeCompleteness"]
    assert report["packageRootDirectory"] == str(PACKAGE), report["packageRootDirectory"]
    wrong = [each for symbol in report["symbols"] if not symbol["isTypeKnown"]
             for each in symbol["diagnostics"]]
    assert not wrong, said(wrong)
    known = {symbol["name"] for symbol in report["symbols"] if symbol["isExported"]}
    assert {"spillway.plan", "spillway.torch.OffloadedAdamW",
            "spillway.torch.engine.Engine.backward"} <= known, known


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> pathlib.Path:
    """A folder with the code of the documents, and what pyright is told of it."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "given.py").write_text(GIVEN)
    for document in (*(ROOT / f"docs/{name}.md" for name in PAGES), ROOT / "README.md"):
        found = blocks(document)
        assert found, document
        for number, code in enumerate(found, 1):
            (folder / f"{document.stem}_{number}.py").write_text(with_imports(code))
    for name in PROGRAMS:
        (folder / f"{name}.py").write_text((ROOT / f"docs/examples/{name}.py").read_text())
    (folder / "wrong.py").write_text(
        "import spillway\nspillway.plan(3, layers='two').no_such(1)\n"
        "spillway.export('run')\nspillway.torch_\n")
    (folder / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "strict", "extraPaths": [str(PACKAGE.parent)],
        **dict.fromkeys((*FOLLOWING, "reportMissingTypeStubs"), "none")}))
    return folder


def test_examples_pass_strict_pyright_and_wrong_calls_do_not(examples):
    found = pyright("-p", examples, folder=examples)
    assert found["summary"]["filesAnalyzed"] >= len(list(examples.glob("*.py"))), found["summary"]
    wrong = [each for each in found["generalDiagnostics"]
             if pathlib.Path(each["file"]).name == "wrong.py"]
    assert {each["rule"] for each in wrong} >= {"reportArgumentType", "reportCallIssue",
                                                "reportAttributeAccessIssue"}, said(wrong)
    errors = [each for each in found["generalDiagnostics"]
              if each not in wrong and not is_of_others(each)]
    assert not errors, said(errors)
