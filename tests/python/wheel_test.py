"""Builds a wheel with tools/wheel, installs it into an empty environment and uses it there.

usage: wheel_test.py BUILD MEGABYTES

Nothing of the system may be needed but Python and glibc: PATH has no compiler, the libraries that
the extension loads are those of the wheel, and it is imported on a processor without AVX-512 too,
which qemu emulates.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BUILD, MEGABYTES = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ROOT = pathlib.Path(__file__).resolve().parents[2]

# What every Linux has, as manylinux wheels may take it for granted.
SYSTEM = re.compile(r"/(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+)"
                    r"[.-]")

USE = """
import pathlib, sys
import spillway
assert pathlib.Path(spillway.__file__).is_relative_to(sys.prefix), spillway.__file__
plan = spillway.plan({"train_micro_batch_size_per_gpu": 1,
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                      "bf16": {"enabled": True}},
                     model="llama-2-7b", machine=sys.argv[1], context=512)
assert plan.parameters == 6738415616, plan.parameters
try:
    spillway.plan({}, model="no such model")
except spillway.InvalidArgumentError as error:
    assert "no such model" in str(error), error
else:
    raise SystemExit("a model that does not exist was planned")
for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
    if ".so" in line and "r-x" in line:
        print(line.split()[-1])
"""


def run(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], check=False, encoding="utf-8",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def foreign_libraries(loaded: str, environment: pathlib.Path) -> list[str]:
    """Libraries that are neither the environment's nor Python's nor the system's smallest."""
    base = sys.base_prefix
    return sorted({path for path in loaded.split()
                   if path.startswith("/") and ".so" in path and not SYSTEM.search(path)
                   and not path.startswith((str(environment), base))
                   and "/lib-dynload/" not in path
                   and not re.search(r"/lib(python3|z|ffi|ssl|crypto|bz2|lzma|expat)[.-]", path)})


def main() -> None:
    out = BUILD / "consumer" / "wheel"
    wheel = pathlib.Path(run(ROOT / "tools/wheel", "--build", BUILD, "--out", out,
                             "--python", sys.executable).split()[-1])
    assert re.search(r"manylinux_2_\d+_x86_64\.whl$", wheel.name), wheel
    megabytes = wheel.stat().st_size / 1e6
    assert megabytes <= MEGABYTES, f"{wheel} has {megabytes:.1f} MB; {MEGABYTES} are allowed"
    with tempfile.TemporaryDirectory() as folder:
        environment = pathlib.Path(folder) / "clean"
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment / "bin" / "python"
        # pip only unpacks; the environment has nothing else, and no compiler is on its PATH.
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index",
            "--no-deps", "--disable-pip-version-check", wheel)
        clean = {"PATH": str(environment / "bin"), "HOME": folder, "XDG_CACHE_HOME": folder}
        machine = next((ROOT / "docs/machines").glob("*.json"))
        loaded = run(python, "-c", USE, machine, cwd=folder, env=clean)
        assert not foreign_libraries(loaded, environment), foreign_libraries(loaded, environment)
        if emulator := shutil.which("qemu-x86_64"):
            run(emulator, "-cpu", "Haswell", python, "-c", "import spillway", cwd=folder, env=clean)
        else:
            print("no qemu-x86_64: not imported without AVX-512")
    print(f"{wheel.name}: {megabytes:.1f} MB")


if __name__ == "__main__":
    main()
