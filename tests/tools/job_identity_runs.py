"""The jobs whose pieces job_identity mixes, the mixtures, and what is asked of them."""
import dataclasses
import json
import os
import pathlib
import shutil
import sys

from program_folder import LLAMA, TEXT, ProgramFolder

START_RANKS = pathlib.Path(__file__).resolve().parents[1] / "comm/start_ranks"
RANK = "rank-0001"
KEPT = "checkpoints/step-2"


def job(ranks=2, stage=0, steps=2, seed=1, lr=1e-3, origin=None, **grid):
    """A job of `ranks` ranks that keeps its second step; `origin` has its start weights."""
    return {"ranks": ranks, "steps": steps, "origin": origin, "config": {
        "train_batch_size": 12, "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "zero_optimization": {"stage": stage}, **grid,
        "spillway": {"context": 8, "threads": 1, "compute_threads": 1, "sum_order": "fixed",
                     "seed": seed, "state_home": "nvme", "commit_every": 1, "save_every": 2,
                     "keep": 1, "device_memory": "4MiB", "host_memory": "4MiB"}}}


#: By name; those after the first differ from it in what they are named for.
JOBS = {
    "stage 3": job(stage=3),
    "stage 3, again": job(stage=3),
    "stage 3, other seed": job(stage=3, seed=2),
    "stage 3, other rate": job(stage=3, lr=2e-3),
    "stage 3, other step": job(stage=3, steps=3),
    "stage 3, three ranks": job(stage=3, ranks=3),
    "stage 0": job(),
    "stage 0, other seed": job(seed=2),
    "pipeline": job(pipeline={"stages": 2}),
    "tensor": job(tensor_parallel={"autotp_size": 2}),
    "one rank": job(ranks=1),
    "stage 3, other weights": job(stage=3, origin="stage 3, other seed"),
}

#: By name: what is taken from another job, and what is then read.
PIECES = {
    "rank": ([RANK], "."),
    "rank's manifest": ([f"{RANK}/manifest.json"], "."),
    "rank's state": ([f"{RANK}/state", f"{RANK}/manifest.json"], "."),
    "manifest": (["manifest.json"], "."),
    "all of rank 0": (["manifest.json", "config.json", "state"], "."),
    "kept": ([KEPT], KEPT),
    "kept rank": ([f"{KEPT}/{RANK}"], KEPT),
    "kept manifest": ([f"{KEPT}/manifest.json"], KEPT),
}
OFFERS = ("info", "fsck", "export", "eval", "generate", "--from", "--resume")


@dataclasses.dataclass(frozen=True)
class Mixture:
    """`own` with a piece of `other`."""

    number: int
    own: str
    other: str
    piece: str

    @property
    def name(self):
        return f"{self.own} with {self.piece} of {self.other}"


def mixtures_of(jobs):
    """Every two of them, with every piece that the other one has."""
    triples = [(own, other, piece) for own in jobs for other in jobs if own != other
               for piece in PIECES if jobs[other]["ranks"] > 1 or RANK not in PIECES[piece][0][0]]
    return [Mixture(number, *triple) for number, triple in enumerate(triples)]


class Folder(ProgramFolder):
    """A folder in which commands run that know nothing of those in other folders."""

    def __init__(self, folder, program):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.program = folder, program


class Workplace(Folder):
    """Where jobs are trained, put away and mixed."""

    def __init__(self, folder, program):
        super().__init__(folder, program)
        self.environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        self.outcomes = {}
        self.write("text.txt", TEXT)
        self.write("model.json", LLAMA | {"hidden_size": 32, "num_key_value_heads": 4,
                                          "intermediate_size": 64})
        self.succeed("data", "text.txt", "--out", "data", "--tokenizer", "bytes")
        os.truncate(self.path("data/val.bin"), 400)  # an evaluation is soon over
        self.write("alone.json", job(ranks=1)["config"])
        for name, each in JOBS.items():
            self.write(f"{name}.json", each["config"])

    def in_folder(self, path):
        """The same program elsewhere: what one mixture says must not be told as another's."""
        there = Folder(path, self.program)
        there.environment = self.environment
        return there

    def train_arguments(self, config, run, steps, *more):
        model = () if "--from" in more else ("--model", self.path("model.json"))
        return ["train", self.path(f"{config}.json"), *model, "--data", self.path("data"),
                "--run", run, "--steps", steps, *more]

    def launcher(self, name):
        ranks = JOBS[name]["ranks"]
        return (sys.executable, "-B", START_RANKS, "-n", ranks) if ranks > 1 else ()

    def train(self, name):
        each, there = JOBS[name], self.in_folder(self.path("runs"))
        more = ()
        if each["origin"]:  # whose weights are those of its first step
            origin = self.path("weights") / each["origin"]
            seeded = self.train_arguments(each["origin"], origin, 1)
            there.succeed(*seeded, before=self.launcher(each["origin"]))
            more = ("--from", origin)
        there.succeed(*self.train_arguments(name, name, each["steps"], *more),
                      before=self.launcher(name))

    def put_away(self):
        """A piece that is moved is no copy: nothing is where the jobs were trained."""
        self.path("runs").rename(self.path("originals"))

    def note_outcomes(self, name):
        for number, root in enumerate((".", KEPT)):
            there = self.in_folder(self.path(f"outcomes/{name} {number}"))
            shutil.copytree(self.path("originals") / name, there.path("run"))
            for offer in OFFERS:
                done, outcome = self.offer(there, offer, root, name)
                assert done.returncode == 0, there.told
                self.outcomes[name, offer, root] = outcome
            shutil.rmtree(there.folder)

    def offer(self, there, offer, root, own):
        """Returns how the command ended, and what it found in the run below `there`."""
        run = there.path("run") / root
        if offer == "--from":
            done = there.run_program(*self.train_arguments("alone", "next", 1, "--from", run))
            return done, there.weights("next") if done.returncode == 0 else None
        if offer == "--resume":
            done = there.run_program(*self.train_arguments(
                own, "run", JOBS[own]["steps"] + 1, "--resume"), before=self.launcher(own))
            return done, there.weights("run") if done.returncode == 0 else None
        arguments = {"info": ["info", run, "--json"], "fsck": ["fsck", run, "--json"],
                     "export": ["export", run, "out", "--json"],
                     "eval": ["eval", "--run", run, "--data", self.path("data"), "--json"],
                     "generate": ["generate", "--run", run, "--prompt", "a", "--tokens", 2,
                                  "--json"]}[offer]
        done = there.run_program(*arguments)
        if done.returncode != 0:
            return done, None
        if offer == "export":
            return done, (there.path("out/model.safetensors")).read_bytes()
        return done, found_in(json.loads(done.stdout))

    def id_of(self, name):
        manifest = self.path("originals") / name / "manifest.json"
        return json.loads(manifest.read_text())["id"]

    def offer_all(self, mixture):
        """Offers a mixture to everybody. Whoever resumes it, which may change it, is the last."""
        there = self.in_folder(self.path(f"mixtures/{mixture.number}"))
        paths, root = PIECES[mixture.piece]
        shutil.copytree(self.path("originals") / mixture.own, there.path("run"))
        for path in paths:
            replace(there.path("run") / path, self.path("originals") / mixture.other / path)
        found, jobs = [], {"own", "other"}  # for which it may be taken
        for offer in OFFERS:
            done, outcome = self.offer(there, offer, root, mixture.own)
            if done.returncode == 0:
                jobs &= {which for which in ("own", "other") if outcome
                         == self.outcomes[getattr(mixture, which), offer, root]}
                said = max(jobs, default="it is accepted, and not as one of the two")
            else:
                said = self.judge_refusal(mixture, done, there.path("run"))
            found.append({"mixture": mixture.name, "piece": mixture.piece, "offer": offer,
                          "outcome": said, "said": done.stderr if done.returncode else ""})
        shutil.rmtree(there.folder)
        return found

    def judge_refusal(self, mixture, done, run):
        """Returns "refused" for one that names what is wrong, or what is wrong with the refusal."""
        ended = "status -" in done.stderr or "had to be stopped" in done.stderr
        if done.returncode < 0 or ended:
            return f"it ends with {done.returncode}"
        said = "".join(line for line in done.stderr.splitlines() if line.startswith("spillway: "))
        # The folder of rank 0 is that of the run.
        folders = (f"{run}/", f"{run} ") if mixture.piece == "all of rank 0" else (f"{run}/",)
        named = (any(folder in said for folder in folders)
                 or all(self.id_of(name) in said for name in (mixture.own, mixture.other)))
        return "refused" if named else "it is refused without a name"


def replace(target, source):
    """Puts a copy of a file or folder in the place of another, which may be missing."""
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def found_in(document):
    """What a command says, without the times that it took and the places of files."""
    if isinstance(document, dict):
        return {key: found_in(value) for key, value in document.items()
                if key not in ("seconds", "run", "files")}
    return [found_in(each) for each in document] if isinstance(document, list) else document
