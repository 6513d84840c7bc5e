"""Does anything grow in two hours at 60 % load?

`hplm serve`, the real command, answers a mixed load over gRPC and HTTP: with and without deadlines, for hPLMs that are
not there, that come and go, and callers who lose patience. Its rate is a share of the capacity that is measured first.
All the while an operator publishes a version every two seconds, rolls back, deletes, and collects garbage. In the first
half a process is killed or stopped now and then, and the watchdog heals the server. In the second half nothing happens:
its slopes, after a time of settling, are the figures. Memory, threads, files and shared memory are those of all
processes together, `hplm serve` among them; a page that several map counts in each for RSS, and once in all for PSS.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.entry import Result, at_most, bench
from bench.kit.footprint import Footprint
from bench.kit.marks import mark_all
from bench.kit.report import Report
from bench.kit.served import Serving
from bench.kit.soak.faults import Fault, faults
from bench.kit.soak.growth import Look, folder_bytes, growth, num_restarts
from bench.kit.soak.load import KINDS, ToldLoad, capacity_per_s, num_failed, num_wrong
from bench.kit.soak.mixed_load import MixedLoad
from bench.kit.soak.publications import PASSING, Publisher, is_marked_right
from bench.kit.supervised import SupervisedServer, supervised
from bench.kit.synthetic_home import SMALL, BaseHome, Family, Words
from bench.kit.until_stopped import UntilStopped

_ROOT = "base"
_MB = 1e6
_SETTLING_SHARE = 1 / 6
"""Of the quiet half."""
_FAULT_EVERY_MIN = 10
_RESTARTS = ("--max-restarts", "20")


@dataclass(frozen=True)
class Settings:
    minutes: float
    faults: int
    look_s: float
    row_s: float
    capacity_s: float
    tenants: int
    geometry: str = "small, 6 of 12 x 256 above PLOT"
    load: float = 0.6
    callers: int = 32
    texts: int = 512
    publish_every_s: float = 2.0
    garbage_every: int = 30
    garbage_grace_s: float = 10.0


FULL = Settings(minutes=120.0, faults=6, look_s=10.0, row_s=60.0, capacity_s=20.0, tenants=100)
QUICK = Settings(minutes=0.4, faults=1, look_s=0.5, row_s=4.0, capacity_s=3.0, tenants=20)


@dataclass
class Course:
    """All that was seen until now."""

    settings: Settings
    capacity_per_s: float = 0.0
    looks: list[Look] = field(default_factory=list)
    healed_s: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    when_quiet: Counter[str] | None = None
    """Outcomes until things had settled in the second half."""
    changes: Counter[str] = field(default_factory=Counter)
    home_bytes: list[tuple[float, int]] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def quiet_from(self) -> float:
        """The minute from which on nothing is left of the last fault."""
        return self.settings.minutes / 2 * (1 + _SETTLING_SHARE)

    def figures(self) -> dict[str, float]:
        looks = [look for look in self.looks if look.minute >= self.quiet_from]
        homes = [size for minute, size in self.home_bytes if minute >= self.quiet_from]
        minutes = looks[-1].minute - looks[0].minute if looks else 0.0
        faulty = self.outcomes if self.when_quiet is None else self.when_quiet
        quiet = self.outcomes - faulty
        return {
            **growth(looks),
            **({"home_mb_more": (homes[-1] - homes[0]) / _MB} if homes else {}),
            "wrong_answers": float(num_wrong(self.outcomes)),
            "faults": float(len(self.healed_s)),
            "healed_s_max": max(self.healed_s, default=0.0),
            "restarts_quiet": float(num_restarts(looks)),
            "failed_faulty": float(num_failed(faulty)),
            "failed_quiet": float(num_failed(quiet)),
            "requests_faulty": float(faulty.total()),
            "requests_quiet": float(quiet.total()),
            "capacity_per_s": self.capacity_per_s,
            **({"load_quiet": quiet.total() / (60 * minutes * self.capacity_per_s)} if minutes else {}),
            **{f"{kind}s": float(count) for kind, count in sorted(self.changes.items())},
            **{f"faulty_{name}": float(count) for name, count in sorted(faulty.items())},
            **{f"quiet_{name}": float(count) for name, count in sorted(quiet.items())},
        }


class Soak:
    """Looks at a server that is loaded, published to and, in the first half, struck by faults."""

    def __init__(
        self,
        server: SupervisedServer,
        load: UntilStopped,
        publisher: Publisher,
        course: Course,
        seed: int,
        json_path: Path | None,
    ) -> None:
        self._server, self._load, self._publisher, self._course = server, load, publisher, course
        self._faults = faults(seed)
        self._seed, self._json_path = seed, json_path
        self._began_s = time.monotonic()
        self._happened: list[str] = []
        self._at_last_row = Counter[str]()
        self._row_due_s = course.settings.row_s

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def run(self) -> None:
        settings = self._course.settings
        end_s = 60 * settings.minutes
        every_s = end_s / 2 / settings.faults
        strikes_s = [(number + 0.5) * every_s for number in range(settings.faults)]
        while self._elapsed_s < end_s:
            time.sleep(settings.look_s)
            if strikes_s and self._elapsed_s > strikes_s[0]:
                strikes_s.pop(0)
                if self._elapsed_s < end_s / 2:  # healing may have taken long
                    self._strike(next(self._faults))
            for outcomes in self._load.told():
                self._course.outcomes = outcomes
            self._course.changes = self._publisher.done()
            self._look()
            if self._course.when_quiet is None and self._course.looks[-1].minute >= self._course.quiet_from:
                self._course.when_quiet = self._course.outcomes
            if self._elapsed_s >= self._row_due_s:
                self._row_due_s = (self._elapsed_s // settings.row_s + 1) * settings.row_s
                self._add_row()

    def _strike(self, fault: Fault) -> None:
        healed_s = fault.strike_and_heal(self._server)
        self._course.healed_s.append(healed_s)
        self._happened.append(f"{fault}, ready after {healed_s:.1f} s")

    def _look(self) -> None:
        held = Footprint.of(self._server.pid)
        self._course.looks.append(Look(self._elapsed_s / 60, held, self._server.triton_pid()))

    def _add_row(self) -> None:
        course, look = self._course, self._course.looks[-1]
        course.home_bytes.append((look.minute, folder_bytes(self._server.home.path)))
        asked = course.outcomes - self._at_last_row
        self._at_last_row = course.outcomes
        row = {
            "minute": round(look.minute, 1),
            **look.row(),
            "home MB": course.home_bytes[-1][1] / _MB,
            "requests": asked.total(),
            "failed": num_failed(asked),
            "published": course.changes["update"] + course.changes["create"],
            "happened": "; ".join(self._happened),
        }
        self._happened.clear()
        course.rows.append(row)
        told = (f"{name} {value:.0f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items())
        print("  ".join(told), file=sys.stderr, flush=True)
        if self._json_path is not None:
            _report(course, self._seed).write(self._json_path)


def measure(folder: Path, settings: Settings, seed: int, json_path: Path | None) -> Course:
    course = Course(settings)
    home, hplms, texts = _made_home(folder, settings, seed)
    with supervised(home, Serving(lower_instances=2, lower={}), _RESTARTS) as server:
        load = MixedLoad(
            server.grpc_url,
            server.http_url,
            hplms,
            texts,
            settings.callers,
            KINDS,
            passing=PASSING,
            is_right=is_marked_right,
        )
        capacity_per_s(load, settings.capacity_s / 2, seed)  # the first requests compute what no table holds
        course.capacity_per_s = capacity_per_s(load, settings.capacity_s, seed + 1)
        load = replace(load, rate_per_s=settings.load * course.capacity_per_s)
        every_s, garbage_every, grace_s = settings.publish_every_s, settings.garbage_every, settings.garbage_grace_s
        publisher = Publisher(home, every_s, garbage_every, grace_s, seed)
        with UntilStopped(ToldLoad(load, seed).play) as process, publisher:
            Soak(server, process, publisher, course, seed, json_path).run()
    return course


def _made_home(folder: Path, settings: Settings, seed: int) -> tuple[Home, Sequence[str], Sequence[str]]:
    """A home whose hPLMs are marked, and texts; the table lacks the fragments of every fourth text."""
    words, rng = Words(SMALL.vocab_size), np.random.default_rng(seed)
    texts = [words.text(rng, int(length)) for length in rng.integers(3, 101, size=settings.texts)]
    base = BaseHome(folder / "home", seed)
    known = [text for number, text in enumerate(texts) if number % 4]
    base.add_root(_ROOT, SMALL, known, SMALL.num_lower_layers)
    hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
    registry = Registry.open(base.home)
    mark_all(base.home, registry)
    registry.close()
    return base.home, hplms, texts


def _report(course: Course, seed: int) -> Report:
    return Report("soak", asdict(course.settings), seed, course.figures(), course.rows, arguments=sys.argv[1:])


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--minutes",
        type=_positive,
        help="of load; 120, or 0.4 with --quick. With --json the report is written anew with each row, once a minute, "
        "so that a run which is interrupted leaves what it has seen",
    )


def _positive(text: str) -> float:
    if not (value := float(text)) > 0:
        raise ValueError
    return value


@bench(
    "soak",
    bars={
        "rss_mb_per_hour": at_most(10),
        "shared_mb_more": at_most(0),
        "threads_more": at_most(0),
        "files_more": at_most(0),
        "wrong_answers": at_most(0),
        "failed_quiet": at_most(0),
        "restarts_quiet": at_most(0),
    },
    add_options=add_options,
)
def soak(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if options.minutes is not None:
        settings = replace(
            settings,
            minutes=options.minutes,
            faults=max(1, round(options.minutes / 2 / _FAULT_EVERY_MIN)),
            row_s=min(settings.row_s, 60 * options.minutes / 6),
            look_s=min(settings.look_s, options.minutes),
        )
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        course = measure(Path(folder), settings, options.seed, options.json)
    return Result(asdict(settings), course.figures(), course.rows)


if __name__ == "__main__":
    soak.main()
