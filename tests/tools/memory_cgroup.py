"""A memory cgroup that a test makes, fills and removes: version 1 or 2, where the test may."""
import os
import pathlib
import time


class NotPossible(Exception):
    """Why no cgroup can be made here."""


def places():
    """(folder of a memory hierarchy or of our group in it, name of the file of its limit)."""
    groups = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            groups["memory" if controllers else ""] = path.lstrip("/")
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ")
        mount, (kind, _, options) = pathlib.Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            yield mount / groups["memory"], "memory.limit_in_bytes"
            yield mount, "memory.limit_in_bytes"
        if kind == "cgroup2" and "" in groups:
            yield mount / groups[""], "memory.max"
            yield mount, "memory.max"


class MemoryCgroup:
    """A group with a limit. `join` is what a child calls before it becomes the program."""

    def __init__(self, limit):
        reasons = []
        for place, file in places():
            folder = place / f"spillway-test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror}")
                continue
            try:
                # A group of version 2 whose parent does not delegate memory lacks the file.
                with open(folder / file, "r+", encoding="ascii") as limits:
                    limits.write(str(limit))
                self.folder = folder
                return
            except OSError as error:
                reasons.append(f"{folder / file}: {error.strerror}")
                folder.rmdir()
        raise NotPossible("; ".join(reasons) or "no memory cgroup is mounted")

    def join(self):
        with open(self.folder / "cgroup.procs", "w", encoding="ascii") as processes:
            processes.write("0")

    def peak(self) -> int:
        """The most that was in use."""
        for file in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self.folder / file).exists():
                return int((self.folder / file).read_text())
        raise NotPossible(f"{self.folder} does not say the most that was in use")

    def remove(self):
        for _ in range(100):  # what its processes had is given back a moment after their end
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.05)
        raise OSError(f"{self.folder} cannot be removed")
