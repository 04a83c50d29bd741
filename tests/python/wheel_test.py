"""Builds wheels with tools/wheel, installs each into empty environments and uses it there.

usage: wheel_test.py BUILD MEGABYTES

Nothing of the system may be needed but Python and glibc: PATH has no compiler, the libraries that
the extension loads are those of the wheel, and it is imported on a processor without AVX-512 too,
which qemu emulates. Versions of Python that this machine has not are named, and left out.
"""
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

BUILD, MEGABYTES = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

# What every Linux has, as manylinux wheels may take it for granted.
SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+)[.-]")
# By the last symbol version of libstdc++: the first glibc whose distributions have it (PEP 600).
GLIBC_OF_LIBSTDCXX = {24: 27, 28: 31, 29: 34, 30: 35, 33: 39}

USE = """
import json, pathlib, sys
import spillway
from spillway import _native
assert pathlib.Path(spillway.__file__).is_relative_to(sys.prefix), spillway.__file__
machine, folder = sys.argv[1], pathlib.Path(sys.argv[2])
config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
plan = spillway.plan(config, model="llama-2-7b", machine=machine, context=512)
assert plan.parameters == 6738415616, plan.parameters
try:
    spillway.plan({}, model="no such model")
except spillway.InvalidArgumentError as error:
    assert "no such model" in str(error), error
else:
    raise SystemExit("a model that does not exist was planned")
text = "".join(f"{n} and {n} make {2 * n}. " for n in range(300)).encode()
(folder / "data").mkdir()
for name in ("train.bin", "val.bin"):
    (folder / "data" / name).write_bytes(b"".join(byte.to_bytes(2, "little") for byte in text))
(folder / "data" / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 256}))
model = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 32, "n_layer": 2,
         "n_head": 4}
report = spillway.train(config, model=model, data=folder / "data", run=folder / "run", steps=20,
                        context=16, device="host", nvme=[str(folder)], progress=False)
losses = [step.loss for step in report.history]
assert len(losses) == 20 and losses[-1] < losses[0] - 0.1, losses
for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
    if ".so" in line and "r-x" in line:
        print(line.split()[-1])
print("names", *sorted(name for name in dir(_native) if not name.startswith("_")))
"""


# A Python of a version, for which a wheel can be built unless there is a reason not to.
FAKE_PYTHON = """#!{sh}
case $2 in
  "import sys; print"*) echo {version} ;;
  *) {says} ;;
esac
"""

# Pythons that are on PATH, those of them without headers, and those that serve.
CHOICES = (((), (), ()), (("3.10",), (), ("3.10",)), (("3.11",), (), ("3.11",)),
           (("3.13",), (), ("3.13",)), (("3.10", "3.12"), ("3.10",), ("3.12",)),
           (("3.11", "3.12", "3.14"), ("3.12",), ("3.11", "3.14")), (VERSIONS, (), VERSIONS[:3]))


def run(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], check=False, encoding="utf-8",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def fake_program(path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def fake_machine(folder: pathlib.Path, have: tuple[str, ...],
                 lack_headers: tuple[str, ...]) -> dict[str, str]:
    """Makes a checkout with tools/wheel, and returns an environment that has just some Pythons."""
    (folder / "bin").mkdir()
    (folder / "tools").mkdir()
    for each in ("wheel", "setup"):
        shutil.copy(ROOT / "tools" / each, folder / "tools")
    for each in ("bash", "basename", "dirname", "realpath"):
        (folder / "bin" / each).symlink_to(shutil.which(each))
    for each in have:
        fake_program(folder / "bin" / f"python{each}", FAKE_PYTHON.format(
            sh=shutil.which("sh"), version=each,
            says="echo no headers" if each in lack_headers else ":"))
    return {"PATH": str(folder / "bin"), "HOME": str(folder)}


def check_choice(have: tuple[str, ...], lack_headers: tuple[str, ...],
                 serve: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = fake_machine(folder, have, lack_headers)
        said = run(folder / "tools/wheel", "--list", env=environment).splitlines()
        chosen = [line for line in said if not line.startswith("== no wheel for ")]
        assert chosen == [str(folder / "bin" / f"python{each}") for each in serve], (have, said)


def check_machine_without_python() -> None:
    """Checks that python3 is installed where there is none: it is taken, and has no headers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = fake_machine(folder, ("3",), ("3",))
        (folder / "CMakeCache.txt").touch()
        for each in ("apt-get", "dpkg-query"):  # all packages are there
            fake_program(folder / "bin" / each, f"#!{shutil.which('sh')}\nprintf installed")
        said = subprocess.run([folder / "tools/wheel", "--build", folder], env=environment,
                              check=False, encoding="utf-8", stderr=subprocess.PIPE).stderr
        assert f"no wheel can be built for {folder}/bin/python3: no headers" in said, said


def check_tried(said: str) -> None:
    """Checks that of each version which one wheel serves it is told whether it was imported."""
    tried = set(re.findall(r"^== .*abi3.* is imported in Python (.*)$", said, re.MULTILINE))
    absent = re.findall(r"^== it is not tried in Python (.*), which is not here$", said,
                        re.MULTILINE)
    later = VERSIONS[2:]
    if any(map(find_python, later)):
        assert " ".join(tried).split() == [each for each in later if find_python(each)], said
        assert " ".join(absent).split() == [each for each in later if not find_python(each)], said


def find_python(version: str) -> pathlib.Path | None:
    """The tests' own Python where it has that version, or one of PATH or of pyenv."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for candidate in (sys.executable, shutil.which(f"python{version}"),
                      *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))):
        ask = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        if candidate and subprocess.run(
                [candidate, "-c", ask], check=False, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, encoding="utf-8").stdout.strip() == version:
            return pathlib.Path(candidate)
    return None


def libraries_of(wheel: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return [path for path in folder.rglob("*") if ".so" in path.name]


def check_libraries(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Checks by readelf that a wheel has what its libraries need, and the least tag that is true.

    auditwheel, which gave the tag, reads the files in its own way.
    """
    libraries = libraries_of(wheel, folder)
    inside = {path.name for path in libraries}
    glibc, libstdcxx = set(), set()
    for path in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", path))
        outside = [name for name in needed if name not in inside and not SYSTEM.match(name)]
        assert not outside, f"{path.name} of {wheel.name} needs {outside}, which are not in it"
        versions = run("readelf", "-VW", path)
        glibc |= {int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", versions)}
        libstdcxx |= {int(minor) for minor in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", versions)}
    least = max(max(glibc), min(
        minor for last, minor in GLIBC_OF_LIBSTDCXX.items() if last >= max(libstdcxx)))
    assert wheel.name.endswith(f"-manylinux_2_{least}_x86_64.whl"), (
        f"{wheel.name} needs glibc 2.{max(glibc)} and GLIBCXX_3.4.{max(libstdcxx)}, "
        f"which is manylinux_2_{least}")


def stub_names(wheel: pathlib.Path) -> list[str]:
    """What the stub of the extension declares."""
    with zipfile.ZipFile(wheel) as archive:
        assert "spillway/py.typed" in archive.namelist(), wheel
        body = ast.parse(archive.read("spillway/_native.pyi")).body
    names = [each.name for each in body if isinstance(each, (ast.ClassDef, ast.FunctionDef))]
    return sorted(names + [each.target.id for each in body if isinstance(each, ast.AnnAssign)])


def foreign_libraries(loaded: str, environment: pathlib.Path) -> list[str]:
    """Libraries that are neither the environment's nor Python's nor the system's smallest."""
    bases = (str(environment), run(environment / "bin/python", "-c",
                                   "import sys; print(sys.base_prefix)").strip())
    return sorted({path for path in loaded.split()
                   if path.startswith("/") and ".so" in path
                   and not SYSTEM.match(pathlib.Path(path).name) and not path.startswith(bases)
                   and "/lib-dynload/" not in path
                   and not re.search(r"/lib(python3|z|ffi|ssl|crypto|bz2|lzma|expat)[.-]", path)})


def install(base: pathlib.Path, wheels: pathlib.Path, environment: pathlib.Path) -> pathlib.Path:
    """Makes an empty environment, in which pip finds the wheel that serves; returns its Python."""
    run(base, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    # pip only unpacks; the environment has nothing else, and no compiler is on its PATH.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index",
        "--find-links", wheels, "--disable-pip-version-check", "spillway")
    return python


def use(base: pathlib.Path, wheels: dict[str, pathlib.Path], version: str) -> None:
    """Installs the wheel for one Python, imports it, plans and trains."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = folder / "clean"
        wheel = wheels[f"cp{version.replace('.', '')}"]
        python = install(base, wheel.parent, environment)
        clean = {"PATH": str(environment / "bin"), "HOME": name, "XDG_CACHE_HOME": name}
        machine = next((ROOT / "docs/machines").glob("*.json"))
        loaded, _, names = run(python, "-c", USE, machine, folder, cwd=folder,
                               env=clean).rpartition("names ")
        assert not foreign_libraries(loaded, environment), foreign_libraries(loaded, environment)
        assert stub_names(wheel) == names.split(), (stub_names(wheel), names)
        if base == pathlib.Path(sys.executable):
            use_in_torch(python, clean, folder)
            emulate(python, clean, folder)
    print(f"Python {version}: {wheel.name} is used, in an empty environment")


def use_in_torch(python: pathlib.Path, clean: dict[str, str], folder: pathlib.Path) -> None:
    """Trains with the wheel's optimizer in the PyTorch that the tests have."""
    import torch
    packages = pathlib.Path(torch.__file__).parents[1]
    example = ROOT / "docs/examples/pytorch_loop.py"
    said = run(python, example, folder, cwd=folder, env={**clean, "PYTHONPATH": packages})
    assert "gradient norm" in said, said


def emulate(python: pathlib.Path, clean: dict[str, str], folder: pathlib.Path) -> None:
    if emulator := shutil.which("qemu-x86_64"):
        run(emulator, "-cpu", "Haswell", python, "-c", "import spillway", cwd=folder, env=clean)
    else:
        print("no qemu-x86_64: not imported without AVX-512")


def main() -> None:
    for choice in CHOICES:
        check_choice(*choice)
    check_machine_without_python()
    out = BUILD / "consumer_wheel"  # consumer.installed_package empties "consumer"
    said = run(ROOT / "tools/wheel", "--build", BUILD, "--out", out)
    told = re.findall(r"^(/.*\.whl): ([\d.]+) MB, Python (3\.\d+)( and later)?, glibc 2\.\d+",
                      said, re.MULTILINE)
    assert told, "tools/wheel has told of no wheel"
    check_tried(said)
    wheels = {}
    for path, megabytes, first, later in told:
        wheel = pathlib.Path(path)
        assert float(megabytes) <= MEGABYTES, f"{wheel}: {megabytes} MB; {MEGABYTES} are allowed"
        with tempfile.TemporaryDirectory() as folder:
            check_libraries(wheel, pathlib.Path(folder))
        for version in VERSIONS[VERSIONS.index(first):] if later else (first,):
            wheels[f"cp{version.replace('.', '')}"] = wheel
        print(f"{wheel.name}: {megabytes} MB")
    for version in VERSIONS:
        if (base := find_python(version)) is None:
            print(f"no Python {version} here: its wheel is not tried")
        else:
            use(base, wheels, version)


if __name__ == "__main__":
    main()
