"""What do a ladder and students add to the creation of an hPLM, in time and in bytes?

`hplm create` runs as a command of its own in turns: plain, with a target and so with an early tuning and a selection,
with that but no early tuning, and with students of the root, which are made beforehand. Before each run the states and
answers that earlier ones have kept are removed, so that each does all of its work. The home is a scratch copy.

`create_over_plain` is the median of the seconds with students over that of plain ones, and `ladder_over_plain` that
with a target. `early_head_share` is the size of the early heads' file over that of the hPLM's other weights; 0 where no
threshold kept the target, which `ladders` says. `student_bytes_ratio` is the size of the students' file over what its
adapters are computed to take: `18 · rank · width + 4 · width` weights of two bytes for each of the students' layers.
The heads, which depend on labels and pooling, are in the file and not in what is computed.

Without `--home` all runs on the tests' tiny home, which shows that it works and nothing else.
"""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from backends.adapters.ladder import LADDER_FILES
from backends.adapters.student_adapters import STUDENT_FILES
from backends.errors import NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, students_folder
from bench.interrupted import Command
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.scratch_home import add_home_option, scratch_home
from bench.kit.tiny_home import write_task
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps

_WEIGHTS = "weights.safetensors"
_RANK = 16
_OF_MODULES, _OF_NORMS = 18, 4
"""Weights of a layer's adapters: of each rank and of the norms, in units of the width."""


@dataclass(frozen=True)
class Kind:
    """A way to create an hPLM."""

    flags: tuple[str, ...] = ()
    has_target: bool = False

    def options(self, max_drop: float, held_out: Path) -> tuple[str, ...]:
        target = ("--held-out", str(held_out), "--max-drop", str(max_drop)) if self.has_target else ()
        return (*self.flags, *target)


KINDS: Mapping[str, Kind] = {
    "plain": Kind(),
    "ladder": Kind(has_target=True),
    "ladder, no early tuning": Kind(("--no-early",), has_target=True),
    "students": Kind(("--students",)),
}


@dataclass(frozen=True)
class Settings:
    task: str
    train_texts: int
    rounds: int
    max_drop: float


@dataclass(frozen=True)
class Files:
    """What `hplm create` reads; of a real task the dev file certifies ladders too."""

    train: Path
    dev: Path
    held_out: Path


@dataclass(frozen=True)
class Creation:
    """One run of `hplm create`."""

    kind: str
    seconds: float
    weight_bytes: int
    early_bytes: int
    student_bytes: int


class Creations:
    """Runs the commands, in a scratch home."""

    def __init__(self, home: Home, root: str, files: Files, max_drop: float) -> None:
        self._home = home
        self._root = root
        self._files = files
        self._max_drop = max_drop
        self._count = 0

    def made(self, kind: str) -> Creation:
        """Create an hPLM; what earlier runs have kept for the next ones is removed first."""
        self._count += 1
        hplm = f"creation/number{self._count}"
        shutil.rmtree(self._home.states.parent, ignore_errors=True)
        options = KINDS[kind].options(self._max_drop, self._files.held_out)
        files = ("--train", str(self._files.train), "--dev", str(self._files.dev))
        seconds = self._seconds(["create", hplm, "--root", self._root, "--domain", "general", *files, *options])
        folder = self._home.path / Registry.open(self._home).hplm(hplm).folder
        return Creation(
            kind, seconds, *(_size_bytes(folder / name) for name in (_WEIGHTS, LADDER_FILES[1], STUDENT_FILES[1]))
        )

    def make_students(self) -> None:
        self._seconds(["students", "make", self._root])

    def _seconds(self, arguments: Sequence[str]) -> float:
        began_s = time.monotonic()
        Command(self._home, arguments).ends_within(None)
        return time.monotonic() - began_s

    def student_bytes(self) -> int:
        """What the adapters of all students are computed to take."""
        root = RootFolder(self._home.root(self._root))
        shape = StudentSet(students_folder(root.path), root).shape
        return 2 * shape.count * shape.layers * shape.width * (_OF_MODULES * _RANK + _OF_NORMS)


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _add_options(arguments: ArgumentParser) -> None:
    add_home_option(arguments)
    arguments.add_argument("--root", default="gte", help="the root of that home")
    arguments.add_argument("--data", type=Path, default=Path("../shared/data"), help="a folder with tasks/")
    arguments.add_argument("--task", default="mrpc", help="the task that is learned")
    arguments.add_argument("--rounds", type=int, default=3, help="runs of each kind")


@bench(
    "creation",
    bars={
        "create_over_plain": at_most(2),
        "early_head_share": at_most(0.03),
        "student_bytes_ratio": at_most(1.1),
    },
    add_options=_add_options,
    quick_s=QUICK_LOADS_S,
)
def creation(options: Namespace) -> Result:
    is_tiny = options.home is None
    settings = Settings(
        "topic" if is_tiny else options.task,
        480 if is_tiny else 2_000,
        1 if options.quick else options.rounds,
        20.0 if is_tiny else 1.0,
    )
    with scratch_home(options.home) as home:
        roots = [entry.name for entry in Registry.open(home).roots()]
        root = roots[0] if is_tiny else options.root
        if root not in roots:
            raise NotFoundError(f"{options.home} has no root {root}; --root names one of {', '.join(roots)}")
        creations = Creations(home, root, _files(options, settings, home), settings.max_drop)
        creations.make_students()
        computed_bytes = creations.student_bytes()
        made: list[Creation] = []
        for _ in range(settings.rounds):
            for kind in KINDS:
                made.append(creations.made(kind))
                print(f"{kind}: {made[-1].seconds:.0f} s", file=sys.stderr)
    return Result(asdict(settings), figures_of(made, computed_bytes), rows_of(made))


def _files(options: Namespace, settings: Settings, home: Home) -> Files:
    if options.home is None:
        folder, count = home.path / "creation", settings.train_texts
        held_out, _ = write_task(folder / "held_out", settings.task, options.seed + 2, count)
        return Files(*write_task(folder, settings.task, options.seed, count), held_out)
    caps = Caps(train=settings.train_texts, dev=None, test=None)
    cut = cut_task(options.data, settings.task, caps, home.path / "creation").files
    return Files(cut.train, cut.dev, cut.dev)


def figures_of(made: Sequence[Creation], computed_bytes: int) -> dict[str, float]:
    seconds = {kind: median(one.seconds for one in made if one.kind == kind) for kind in KINDS}
    ladders = [one for one in made if one.early_bytes]
    students = [one for one in made if one.student_bytes]
    return {
        "create_over_plain": seconds["students"] / seconds["plain"],
        "ladder_over_plain": seconds["ladder"] / seconds["plain"],
        "ladder_without_early_over_plain": seconds["ladder, no early tuning"] / seconds["plain"],
        "ladders": len(ladders),
        "early_head_share": max((one.early_bytes / one.weight_bytes for one in ladders), default=0.0),
        "student_bytes_ratio": median(one.student_bytes for one in students) / computed_bytes,
    }


def rows_of(made: Sequence[Creation]) -> list[dict[str, Any]]:
    return [
        {
            "hplm": kind,
            "seconds": median(one.seconds for one in made if one.kind == kind),
            "slowest s": max(one.seconds for one in made if one.kind == kind),
            **{
                f"{name} KB": max(getattr(one, f"{name}_bytes") for one in made if one.kind == kind) / 1000
                for name in ("weight", "early", "student")
            },
        }
        for kind in KINDS
    ]


if __name__ == "__main__":
    creation.main()
