"""What the tests of a run's identity share. Each case brings a run into a situation in which it
could lose, mix up or restart what it has trained, and looks at the program from outside: either it
is refused, with the right exit code, the cause in the message and every byte of the run unchanged,
or it goes on as a run that was never disturbed."""
import contextlib
import hashlib
import json
import subprocess

from program_test_case import SECONDS, ProgramTestCase

STEPS = 12
ENDLESS = 100000


def snapshot(*roots):
    """Every file below the directories, by content. The lock is not the run's."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for root in roots for path in (root, *root.rglob("*")) if path.name != "lock"}


class IdentityTestCase(ProgramTestCase):
    def configure(self, options=None, **section):
        super().configure(options, **({"commit_every": 1} | section))

    def tokens(self, name, values):
        self.path(name).write_bytes(b"".join(value.to_bytes(2, "little") for value in values))

    def train(self, run, steps=STEPS, *more) -> list:
        return super().train(run, steps, *more)

    def trained(self, run, steps=STEPS, *more):
        return self.succeed(*self.train(run, steps, *more))

    @contextlib.contextmanager
    def live(self, run, *more, steps=3):
        """A run that trains, past its first commits."""
        child = self.start(*self.train(run, ENDLESS, *more), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, encoding="utf-8")
        try:
            self.wait_for_steps(child, run, steps)
            yield child
        finally:
            child.kill()
            child.communicate()

    def expect_ended(self, child, code, *words):
        out, err = child.communicate(timeout=SECONDS)
        self.assertEqual(child.returncode, code, err)
        for word in words:
            self.assertIn(str(word), err)
        return out

    def expect_refused(self, arguments, code, *words):
        said = self.refused(*arguments, code=code)
        for word in words:
            self.assertIn(str(word), said)

    def manifest(self, run):
        return json.loads((self.path(run) / "manifest.json").read_text())

    def swap_file(self, run):
        return self.path(run) / self.manifest(run)["state"][0] / "tiles-0.swap"

    def step(self, run):
        return self.document("info", run)["step"]

    @contextlib.contextmanager
    def unchanged(self, *names):
        before = snapshot(*map(self.path, names))
        yield
        self.assertEqual(snapshot(*map(self.path, names)), before)

    def expect_equal_runs(self, run, whole):
        self.assertEqual(self.results(run), self.results(whole))
        self.assertEqual(self.weights(run), self.weights(whole))

    def expect_resumed(self, run, whole):
        """As `whole`, but for the evaluation at the end of the first part."""
        ours, theirs = ([{key: value for key, value in line.items() if key != "val_loss"}
                         for line in self.results(each)] for each in (run, whole))
        self.assertEqual(ours, theirs)
        self.assertEqual(self.weights(run), self.weights(whole))
