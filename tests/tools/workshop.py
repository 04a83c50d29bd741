"""A worktree of HEAD in which tests/tools/mutants plants faults, its builds, and the runs of tests
in them."""
import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("SPILLWAY_PYTHON", str(ROOT / ".venv/bin/python"))
TEST_SECONDS = 600
TIMED_OUT = "timed out"   # in place of an exit status
WATCHED = "tsan:"         # before the name of a target: its build with ThreadSanitizer
# Tests that are no GoogleTest binary, and the programs that they run.
SCRIPTS = {**{f"mpi.{name}": ["spillway", "spillway_mpi"]
              for name in ("identity", "kill", "training")},
           "capi.dlpack": ["spillway_capi"],
           "reference_trainer_test": ["spillway"], "training_peer_test": ["spillway"],
           "model_peer_transformers_fp32": ["model_probe"],
           "model_transformers_test": ["checkpoint_tool"],
           "config_deepspeed_test": ["config_answer"], "config_training_test": ["spillway"],
           "cpu_adam_against_torch": ["adam_peer"], "cpu_adam_on_other_cpus": ["kernel_digest"],
           "engine_deepspeed_test": ["spillway", "schedule_print"],
           "schedule_deepspeed_test": ["schedule_print"], "schedule_peer_test": ["schedule_print"],
           **{f"llama_peer_test_{dtype}": ["spillway"] for dtype in ("fp32", "bf16")},
           **{f"mpi.contract_{ranks}": ["mpi_comm_test"] for ranks in (2, 4)},
           "tcp.failures": ["failing_ranks"], "tcp.kill": ["spillway"],
           "tcp.training": ["spillway"],
           "tools.emulated_runs": ["spillway_emulated"], "tcp.place": ["spillway"],
           "tcp.run": ["spillway"],
           **{f"python.{name}": ["spillway", "spillway_python"] for name in (
               "alone", "arguments", "by_hand", "callbacks", "checkpoint",
               "checkpoint_memory", "cut_off", "deepspeed",
               "deepspeed_checkpoint", "deepspeed_cut", "deepspeed_gan", "deepspeed_names",
               "deepspeed_scripts",
               "deferred", "device", "engine", "engine_ranks", "experts",
               "forecast", "forked",
               "frozen_disk",
               "handed_back", "handed_over", "handles", "huggingface", "huggingface_resume",
               "idioms_calls", "idioms_data", "idioms_gradients", "idioms_kept", "idioms_libraries",
               "idioms_lightning", "idioms_models", "idioms_passes", "idioms_states",
               "idioms_weights", "interrupted", "jax", "jax_writes", "layout",
               "lifetime", "missing", "native_run", "optimizers",
               "optimizers_state", "paths", "quantized", "quantized_bases", "quantized_memory",
               "raised", "ranks", "ranks_deferred",
               "ranks_gradients", "ranks_writes", "released", "saved_groups", "saved_state",
               "scaled", "streamed_activations", "streamed_memory", "streamed_one_rank",
               "streamed_ranks", "streamed_trainer_ranks", "streamed_views", "streaming",
               "torch_calls", "trainer_optimizers", "trainer_ranks", "trainer_streaming",
               "trainer_tuning", "writes", "zero_to_fp32")},
           "python.types": ["spillway_python", "spillway_python_stub"],
           **{f"python.{name}": ["spillway", "spillway_python", "spillway_failing_calls"]
              for name in ("failing_calls", "failing_runs")},
           **{f"python.{name}": ["spillway", "spillway_python_emulated"]
              for name in ("emulated", "emulated_trainers")},
           **{f"tools.{name}": ["spillway"] for name in (
               "bench", "bench_disk", "commands", "divergence", "identity_of_runs",
               "identity_of_state", "inputs", "job_identity", "kill", "machines", "memory",
               "metrics_order", "output", "pages", "plan", "plan_grids",
               "ranks_survive_socket_calls_that_fail", "resume",
               "runs_survive_system_calls_that_fail", "small_machine", "step_shape", "terminal",
               "tokenizer_runs", "train")}}


def declarations():
    """The text of CMake's lists, without comments, which show how a test is declared."""
    text = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("CMakeLists.txt"))
    return re.sub(r"#.*", "", text)


def usual_cases():
    """By test: the filter of the cases that the suite runs, where these are not all."""
    filters = {}
    for name, rest in re.findall(r"spillway_emulated_test\((\w+)([^()]*)\)", declarations()):
        words = rest.split()
        if "CASES" in words:
            cases = itertools.takewhile(lambda word: word not in ("SANITIZED", "SHARDS", "LINKS"),
                                        words[words.index("CASES") + 1:])
            filters[name] = ":".join(cases)
    return filters


def known_tests():
    """Targets of spillway_test, and the scripts, as CMake's lists name them."""
    text = declarations()
    return set(re.findall(r"spillway_(?:emulated_)?test\((\w+)", text)) | set(SCRIPTS)


def known_cases():
    """The names of the scripts' cases, without those of their classes."""
    return {name for script in (ROOT / "tests").rglob("*_test.py")
            for name in re.findall(r"def (test_\w+)", script.read_text())}


def cases_in(listing):
    """The names of all cases in what --gtest_list_tests prints, without disabled ones."""
    found, suite = [], ""
    for line in listing.splitlines():
        name = line.partition("#")[0].strip()
        if not line.startswith(" "):
            suite = name if name.endswith(".") else ""
        elif suite and "DISABLED_" not in suite + name:
            found.append(suite + name)
    return found


class Workshop:
    """A worktree, its builds, and what is done to them. `name` is that of the folder of the build,
    `arguments` are more of CMake's."""

    def __init__(self, directory, name="release", arguments=()):
        self.tree = directory / "tree"
        self.build = self.tree / "build" / name
        self.arguments = arguments
        self.watched = self.tree / "build/tsan"
        self.log = (directory / "log.txt").open("a")
        if shutil.which("ccache"):  # a file without its fault is compiled once
            self.environment = os.environ | {
                "CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "true",
                "CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_BASEDIR": str(self.tree)}
        else:
            self.environment = dict(os.environ)
        self.passed = set()  # tests that were seen to pass without a fault
        self.usual = usual_cases()

    def run(self, *command, timeout=None, env=None, **keywords):
        print("$", *command, file=self.log, flush=True)
        with subprocess.Popen([str(c) for c in command], stdout=self.log,
                              stderr=subprocess.STDOUT, start_new_session=True,
                              env=env or self.environment, **keywords) as process:
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return TIMED_OUT
            finally:  # what it has started too
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def configure(self, build):
        preset = "tsan" if build == self.watched else "release"
        assert self.run("cmake", "-S", self.tree, "-B", build, "--preset", preset,
                        "-DSPILLWAY_BUILD_TESTS=ON", "-DSPILLWAY_CUDA=OFF",
                        f"-DSPILLWAY_PYTHON={PYTHON}", *self.arguments,
                        cwd=self.tree) == 0, "see log.txt"

    def prepare(self):
        if not self.tree.exists():
            assert self.run("git", "-C", ROOT, "worktree", "add", "--force",
                            "--detach", self.tree) == 0
        assert self.run("git", "-C", self.tree, "checkout", "--force", self.head()) == 0
        self.configure(self.build)

    @staticmethod
    def head():
        return subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True,
                              text=True, check=True).stdout.strip()

    def objects(self):
        """By source of the tree: its objects, as ninja names them."""
        found = collections.defaultdict(list)
        for command in json.loads((self.build / "compile_commands.json").read_text()):
            name = self.name_in_tree(pathlib.Path(command["directory"], command["file"]))
            found[name].append(re.search(r" -o (\S+) ", command["command"])[1])
        return found

    def name_in_tree(self, file):
        """The name of a file that a compiler tells; none: it is elsewhere."""
        start = self.build if str(file).startswith("..") else self.tree
        path = pathlib.Path(start, file).resolve()
        return path.relative_to(self.tree).as_posix() if path.is_relative_to(self.tree) else None

    def log_size(self):
        return self.log.tell()

    def log_from(self, begin):
        with open(self.log.name) as file:
            file.seek(begin)
            return file.read()

    def make(self, test):
        target = test[0].removeprefix(WATCHED)
        build = self.build if target == test[0] else self.watched
        if not (build / "CMakeCache.txt").exists():
            self.configure(build)
        return self.make_targets(build, *SCRIPTS.get(target, [target]))

    def make_targets(self, build, *targets, keep_going=False):
        more = ["--", "-k", "0"] if keep_going else []
        return self.run("cmake", "--build", build, "-j", os.environ.get("JOBS", "2"),
                        "--target", *targets, *more) == 0

    def status(self, test, number=0, seconds=TEST_SECONDS, **more):
        target, chosen = test
        program = target.removeprefix(WATCHED)
        environment = self.environment | {
            "SPILLWAY_DEVICE": "host", "SPILLWAY_PLANTED": str(number),
            "SPILLWAY_TEST_CASES": chosen if ".test_" in chosen else "",
            "PYTEST_ADDOPTS": f"-k {chosen}" if chosen.startswith("test_") else "",
            "TSAN_OPTIONS": f"halt_on_error=1 suppressions={self.tree}/tests/tsan.supp"}
        environment |= more
        if target == "reference_trainer_test":
            command = [PYTHON, "-B", self.tree / "tests/reference/reference_test.py",
                       self.build / "spillway", "--case", chosen]
        elif target == "tools.emulated_runs":
            command = [PYTHON, "-B", self.tree / "tests/tools/emulated_runs", "--first-difference",
                       "--binary", self.program("spillway_emulated")]
            command += ["--only", chosen] if chosen else []
        elif target in SCRIPTS:
            command = ["ctest", "--test-dir", self.build, "-R", f"^{target}$", "-V"]
        else:
            build = self.build if program == target else self.watched
            command = ["setarch", "--addr-no-randomize"] if program != target else []
            command += [self.program(program, build)]
            cases = chosen or self.usual.get(program, "")
            command += [f"--gtest_filter={cases}"] if cases else []
            command += ["--gtest_fail_fast", "--gtest_brief=1"]
        return self.run(*command, timeout=seconds, env=environment)

    def program(self, name, build=None):
        return next((build or self.build).glob(f"tests/**/{name}"))

    def cases(self, program):
        """The cases of GoogleTest that the suite runs."""
        usual = self.usual.get(program, "*")
        return cases_in(subprocess.run(
            [self.program(program), "--gtest_list_tests", f"--gtest_filter={usual}"],
            capture_output=True, text=True, check=True).stdout)

    def passes(self, test):
        if test not in self.passed:
            assert self.make(test), f"{test[0]} does not build without a fault; see log.txt"
            assert self.status(test) == 0, f"{' '.join(test)} fails without a fault"
            self.passed.add(test)

    @contextlib.contextmanager
    def planted(self, texts):
        """With the texts in place of those of the files."""
        originals = {file: (self.tree / file).read_text() for file in texts}
        try:
            for file, text in texts.items():
                (self.tree / file).write_text(text)
            yield
        finally:
            for file, text in originals.items():
                (self.tree / file).write_text(text)
