"""Does serving go on while hPLMs and domains are published, rolled back and deleted?

A real server answers mixed tenants all the time. Meanwhile an operator creates, updates, rolls back and deletes hPLMs
(copies of real ones under new versions, written and registered as any other), publishes domains and collects garbage.
Every answer must carry a version that was live at some moment between `allowance_s` before the request was sent and
the arrival of its answer: a server looks for changes five times a second. Every version's weights bear a mark, and an
answer's scores must be those of the version that it carries (`wrong_weights`; `bench.kit.marks`).

No hPLM is asked for before it is a second old, or once it is deleted. Requests that were under way while their hPLM
was deleted may be answered NOT_FOUND; `deleted_under_way` counts them.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import LONGEST_INTERVAL_S
from backends.storage import publishing
from bench.kit.entry import Result, at_most, bench
from bench.kit.home_load import TEXTS, Askable, Load
from bench.kit.marks import mark_all, publish_marked, wrong_weights
from bench.kit.scratch_home import add_home_option, scratch_home
from bench.kit.served import Serving, served
from bench.kit.timeline import Asked, Timeline
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_hplm
from hplm_client import NotFoundError

_KINDS = ("create", "update", "rollback", "delete")
_WEIGHTS = (3, 4, 2, 1)
_KEPT_OF_FEW = 4
_SHOWN_FAILURES = 3


@dataclass(frozen=True)
class Settings:
    quiet_s: float
    pause_s: float
    operations: int = 200
    domains: int = 3
    clients: int = 4
    garbage_every: int = 40
    garbage_grace_s: float = 5.0
    seen_after_s: float = 1.0
    allowance_s: float = LONGEST_INTERVAL_S + 0.05


FULL = Settings(quiet_s=30.0, pause_s=0.25)
QUICK = Settings(quiet_s=6.0, pause_s=0.05)


@dataclass
class Operator:
    """Publishes, rolls back and deletes through the registry and the bank, as the commands do."""

    home: Home
    registry: Registry
    timeline: Timeline
    askable: Askable
    settings: Settings
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def work(self) -> None:
        every = self.settings.operations // self.settings.domains
        for number in range(self.settings.operations):
            if number % every == every // 2 and self.done["domain"] < self.settings.domains:
                self._publish_domain()
            if number % self.settings.garbage_every == self.settings.garbage_every - 1:
                collect_garbage(self.home, self.registry, GarbageSettings(grace_s=self.settings.garbage_grace_s))
            self._operate()
            time.sleep(self.settings.pause_s)

    def _operate(self) -> None:
        entries = self.registry.hplms()
        (kind,) = self.rng.choices(_KINDS, _WEIGHTS)
        entry = self.rng.choice(entries)
        earlier = [v for v in self.registry.hplm_versions(entry.id) if v.entry.version < entry.version]
        if (kind == "rollback" and not earlier) or (kind == "delete" and len(entries) <= _KEPT_OF_FEW):
            kind = "update"
        getattr(self, f"_{kind}")(entry)
        self.done[kind] += 1

    def _create(self, model: HplmEntry) -> None:
        hplm = f"bench/created{self.done['create']}"
        with self.timeline.change(hplm) as published:
            published.append(publish_marked(self.home, self.registry, hplm, model, model.domain).version)
        self.askable.add(hplm, self.settings.seen_after_s)

    def _update(self, entry: HplmEntry) -> None:
        with self.timeline.change(entry.id) as published:
            domain = self.registry.domain_for_update(entry.id)
            published.append(publish_marked(self.home, self.registry, entry.id, entry, domain).version)

    def _rollback(self, entry: HplmEntry) -> None:
        with self.timeline.change(entry.id) as published:
            published.append(rollback_hplm(self.home, self.registry, entry.id).version)

    def _delete(self, entry: HplmEntry) -> None:
        self.askable.remove(entry.id)
        with self.timeline.change(entry.id):
            self.registry.delete_hplm(entry.id)

    def _publish_domain(self) -> None:
        domains = [domain for domain in self.registry.domains() if len(domain.folders) > 1]
        live = self.rng.choice(domains or self.registry.domains())
        version = self.registry.next_domain_version(live.root, live.name)
        target = self.home.plot(live.root, live.name, version)
        with publishing(target) as folder:
            shutil.copytree(self.home.path / live.folders[0], folder, dirs_exist_ok=True)
        parent = self.registry.domain_parent(live)
        folder_name = self.home.relative(target)
        self.registry.publish_domain(live.root, live.name, folder_name, parent, live.metrics, version=version)
        self.done["domain"] += 1


@dataclass(frozen=True)
class Course:
    """What happened; `unmarked` are the versions that were there before, to which a rollback may lead."""

    timeline: Timeline
    done: Counter[str]
    phases: list[Phase]
    unmarked: set[tuple[str, int]]
    ended_early: int

    def figures(self, allowance_s: float) -> dict[str, float]:
        asked = [one for phase in self.phases for one in phase.asked]
        found = judged(self.timeline, asked, allowance_s)
        wrong = wrong_weights(asked, self.unmarked)
        return {**found, "failed": found["failed"] + self.ended_early, "wrong_weights": wrong}


def run(home: Home, settings: Settings, texts: Sequence[str], seed: int) -> Course:
    registry = Registry.open(home)
    unmarked = {(entry.id, v.entry.version) for entry in registry.hplms() for v in registry.hplm_versions(entry.id)}
    entries = mark_all(home, registry)
    timeline, askable = Timeline(), Askable([entry.id for entry in entries])
    for entry in entries:
        with timeline.change(entry.id) as published:
            published.append(entry.version)
    operator = Operator(home, registry, timeline, askable, settings, random.Random(seed))
    with served(home, Serving(lower_instances=2)) as server:
        load = Load(f"grpc://{server.grpc_url}", askable, texts, settings.clients, seed)
        with load:
            time.sleep(settings.quiet_s / 4)
            load.take()  # the first requests find cold tables
            time.sleep(settings.quiet_s)
            quiet = Phase("quiet", load.take())
            operator.work()
            time.sleep(settings.seen_after_s)
        publishing_phase = Phase("publishing", load.take())
    registry.close()
    return Course(timeline, operator.done, [quiet, publishing_phase], unmarked, load.ended_early)


@dataclass(frozen=True)
class Phase:
    name: str
    asked: list[Asked]

    @property
    def p99_ms(self) -> float:
        return self._percentile_ms(99)

    def row(self) -> dict[str, Any]:
        span_s = max(one.received_s for one in self.asked) - min(one.sent_s for one in self.asked)
        return {
            "phase": self.name,
            "requests": len(self.asked),
            "requests per s": len(self.asked) / span_s,
            "p50 ms": self._percentile_ms(50),
            "p99 ms": self.p99_ms,
            "hPLMs asked": len({one.hplm for one in self.asked}),
        }

    def _percentile_ms(self, percent: float) -> float:
        return float(np.percentile([1e3 * (one.received_s - one.sent_s) for one in self.asked], percent))


def judged(timeline: Timeline, asked: Sequence[Asked], allowance_s: float) -> dict[str, float]:
    failed = [one for one in asked if one.error is not None]
    deleted = [one for one in failed if isinstance(one.error, NotFoundError) and timeline.was_deleted_under_way(one)]
    real = [one for one in failed if one not in deleted]
    for one in real[:_SHOWN_FAILURES]:
        print(f"failed: {one.hplm}: {one.error}", file=sys.stderr)
    stale = [one for one in asked if one.error is None and not timeline.was_live(one, allowance_s)]
    return {
        "requests": len(asked),
        "failed": len(real),
        "stale_answers": len(stale),
        "deleted_under_way": len(deleted),
    }


@bench(
    "lifecycle",
    bars={"failed": at_most(0), "stale_answers": at_most(0), "wrong_weights": at_most(0)},
    add_options=add_home_option,
)
def lifecycle(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with scratch_home(options.home) as home:
        course = run(home, settings, TEXTS, options.seed)
    done, (quiet, publishing_phase) = course.done, course.phases
    figures = {
        **course.figures(settings.allowance_s),
        "publications": sum(done[kind] for kind in _KINDS),
        "domain_publications": done["domain"],
        "p99_quiet_ms": quiet.p99_ms,
        "p99_publishing_ms": publishing_phase.p99_ms,
    }
    operations = {f"{kind}s": done[kind] for kind in (*_KINDS, "domain")}
    return Result({**asdict(settings), **operations}, figures, [phase.row() for phase in course.phases])


if __name__ == "__main__":
    lifecycle.main()
