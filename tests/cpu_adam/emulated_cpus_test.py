"""The kernels on processors that this machine is not, by QEMU's user mode emulation.

usage: emulated_cpus_test.py KERNEL_DIGEST SOURCE_DIR WORK_DIR

x86-64 without AVX-512 and without AVX2: no illegal instruction, the right kernels, the same bits,
and a refusal of what is forced and not there. ARM (cross-compiled here): the same bits from the
portable kernels. Exit 77, skipped, without QEMU; ARM is left out without its compiler.
"""
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
NOT_SUPPORTED = 3
# CPU model -> instruction sets that it has.
X86_MODELS = {"Haswell-noTSX": ("scalar", "portable", "avx2"),
              "Nehalem": ("scalar", "portable")}
ARM_SOURCES = ("tests/cpu_adam/kernel_digest.cpp", "cpu_adam/adam.cpp",
               "cpu_adam/gradient_norm.cpp", "cpu_adam/state_format.cpp",
               "cpu_adam/detail/scalar_kernels.cpp", "cpu_adam/detail/portable_kernels.cpp",
               "runtime/base/dtype.cpp", "runtime/base/error.cpp",
               "runtime/base/state_format.cpp", "runtime/base/units.cpp")


def run(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False)


def digests(command):
    done = run(command)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return dict(line.split() for line in done.stdout.splitlines())


def check_same(found, native, where, isas):
    expected = {name: digest for name, digest in native.items() if name.split("_")[0] in isas}
    if not expected or found != expected:
        differ = sorted(name for name in {*found, *expected}
                        if found.get(name) != expected.get(name))
        sys.exit(f"{where}: {len(differ)} of {len(expected)} kernels differ or are missing: "
                 f"{differ[:5]}")
    print(f"{where}: {len(found)} kernels, the same bits as here")


def check_x86(program, native):
    for model, isas in X86_MODELS.items():
        emulator = ["qemu-x86_64", "-cpu", model, program]
        check_same(digests(emulator), native, model, isas)
        for isa in {"avx2", "avx512"} - set(isas):
            forced = run([*emulator, isa])
            if forced.returncode != NOT_SUPPORTED or isa not in forced.stderr:
                sys.exit(f"{model}: forcing {isa} gave exit {forced.returncode}: {forced.stderr}")


def check_arm(source, work, native):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None or shutil.which("qemu-aarch64") is None:
        print("aarch64: no cross compiler or emulator here; left out")
        return
    program = work / "kernel_digest_aarch64"
    headers = work / "aarch64_include"  # fmt alone: /usr/include holds this machine's own C library
    headers.mkdir(parents=True, exist_ok=True)
    for package in ("fmt",):
        link = headers / package
        if not link.exists():
            link.symlink_to(pathlib.Path("/usr/include") / package)
    built = run([compiler, "-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
                 "-static", "-DFMT_HEADER_ONLY", f"-I{source}", f"-I{headers}",
                 *(source / name for name in ARM_SOURCES), "-o", program])
    if built.returncode != 0:
        sys.exit(f"aarch64: does not compile:\n{built.stderr[:4000]}")
    check_same(digests(["qemu-aarch64", program]), native, "aarch64", ("scalar", "portable"))


def main():
    program, source, work = (pathlib.Path(argument) for argument in sys.argv[1:4])
    if shutil.which("qemu-x86_64") is None:
        sys.exit(SKIPPED)
    native = digests([program])
    check_x86(program, native)
    check_arm(source, work, native)


if __name__ == "__main__":
    main()
