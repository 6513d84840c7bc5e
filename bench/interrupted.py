"""Does a killed build go on, end as an undisturbed one, and leave the live versions serving all the while?

Builds run as real commands on a scratch home that a real server answers from all the while. Each is killed with
SIGKILL at random moments of its work and started again with the same command until it ends; what it publishes is
compared with what the same command published undisturbed: byte for byte, and number for number where bytes differ.
Builds of one kind go on until enough kills have hit one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.entry import Result, at_most, bench
from bench.kit.home_load import TEXTS, Askable, Load
from bench.kit.interruption.builds import DomainBuilds, Selections, Sizes, StudentSets, Subject, Tunings
from bench.kit.marks import mark_all, wrong_weights
from bench.kit.scratch_home import add_home_option, scratch_home
from bench.kit.served import Serving, served

_PAUSE_S = 0.02


@dataclass(frozen=True)
class Settings:
    kills: int
    sizes: Sizes


FULL = Settings(
    20,
    Sizes(
        corpus_texts=3000,
        mlm_steps=60,
        head_steps=60,
        tuning_texts=1600,
        epochs=16,
        held_out_texts=1600,
        student_steps=150,
    ),
)
QUICK = Settings(
    2,
    Sizes(
        corpus_texts=800,
        mlm_steps=20,
        head_steps=20,
        tuning_texts=600,
        epochs=6,
        held_out_texts=600,
        student_steps=40,
    ),
)


class Command:
    """`hplm` in a process of its own, and the last line of its progress."""

    def __init__(self, home: Home, arguments: Sequence[str]) -> None:
        line = [sys.executable, "-c", "import cli; cli.main()", *arguments, "--home", str(home.path)]
        self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._working = threading.Event()
        self.last_line = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ends_within(self, seconds: float | None) -> bool:
        """Whether it ends by itself in that time, counted from its first sign of work."""
        self._working.wait()
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join()
        if status:
            raise HplmError(f"a build failed: {self.last_line}")
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        if self._process.stderr is not None:
            for line in self._process.stderr:
                if line.strip():
                    self.last_line = line.strip()
                    self._working.set()
        self._working.set()


@dataclass(frozen=True)
class Kill:
    after_s: float
    phase: str


class Killer:
    """Builds one subject again and again, with kills at random moments of the work."""

    def __init__(self, home: Home, subject: Subject, rng: random.Random) -> None:
        self._home = home
        self._subject = subject
        self._rng = rng
        self._work_s = 0.0

    def run(self, kills: int) -> list[dict[str, Any]]:
        """One row per build."""
        rows = [self._undisturbed()]
        while (missing := kills - sum(row["kills"] for row in rows)) > 0:
            rows.append(self._killed(len(rows), missing))
            print(f"{self._subject.kind}: {rows[-1]}", file=sys.stderr)
        return rows

    def _undisturbed(self) -> dict[str, Any]:
        self._subject.prepare()
        command = Command(self._home, self._subject.command(0))
        command.ends_within(0.0)
        started_s = time.monotonic()
        command.ends_within(None)
        self._work_s = time.monotonic() - started_s
        return self._row(0, [])

    def _killed(self, number: int, most_kills: int) -> dict[str, Any]:
        self._subject.prepare()
        kills: list[Kill] = []
        while True:
            command = Command(self._home, self._subject.command(number))
            after_s = self._rng.uniform(0, self._work_s)
            if command.ends_within(after_s if len(kills) < most_kills else None):
                return self._row(number, kills)
            command.kill()
            if self._subject.is_published(number):  # too late: nothing was interrupted
                return self._row(number, kills)
            kills.append(Kill(after_s, command.last_line.partition(": ")[2]))

    def _row(self, number: int, kills: Sequence[Kill]) -> dict[str, Any]:
        return {
            "kind": self._subject.kind,
            "build": number,
            "kills": len(kills),
            "killed at": "; ".join(f"{kill.after_s:.1f} s ({kill.phase})" for kill in kills),
            "difference": self._subject.difference(number),
        }


def run(home: Home, settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    builds: Sequence[Subject] = [
        kind(home, settings.sizes, seed) for kind in (DomainBuilds, Tunings, Selections, StudentSets)
    ]
    rng = random.Random(seed)
    askable = Askable([entry.id for entry in mark_all(home, Registry.open(home))])
    figures: dict[str, float] = {}
    rows = []
    with (
        served(home, Serving(lower_instances=2)) as server,
        Load(f"grpc://{server.grpc_url}", askable, TEXTS, 1, seed, _PAUSE_S) as load,
    ):
        for subject in builds:
            of_subject = Killer(home, subject, rng).run(settings.kills)
            differences = [row["difference"] for row in of_subject]
            figures[f"{subject.kind}_kills"] = sum(row["kills"] for row in of_subject)
            figures[f"{subject.kind}_builds"] = len(of_subject) - 1
            figures[f"{subject.kind}_identical"] = differences.count(0.0) - 1
            figures[f"{subject.kind}_largest_difference"] = max(differences)
            rows += of_subject
    asked = load.take()
    failed = [one for one in asked if one.error is not None]
    for one in failed[:3]:
        print(f"failed: {one.hplm}: {one.error}", file=sys.stderr)
    of_server = {
        "requests": len(asked),
        "failed_requests": len(failed) + load.ended_early,
        "wrong_weights": wrong_weights(asked),
    }
    return {**figures, **of_server}, rows


def add_options(arguments: ArgumentParser) -> None:
    add_home_option(arguments)
    arguments.add_argument("--kills", type=int, help="kills per kind of build (20, or 2 with --quick)")


@bench(
    "interrupted",
    bars={
        "domain_largest_difference": at_most(0),
        "tuning_largest_difference": at_most(0),
        "selection_largest_difference": at_most(0),
        "students_largest_difference": at_most(0),
        "failed_requests": at_most(0),
        "wrong_weights": at_most(0),
    },
    add_options=add_options,
)
def interrupted(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if options.kills:
        settings = replace(settings, kills=options.kills)
    # The scratch home's models are so small that a second thread only waits, here and in the commands.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with scratch_home(options.home) as home:
        return Result(asdict(settings), *run(home, settings, options.seed))


if __name__ == "__main__":
    interrupted.main()
