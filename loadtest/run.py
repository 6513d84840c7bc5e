"""One run: check, send, keep every outcome, and make the report, also of what was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from loadtest import figures, server
from loadtest.figures import Planned
from loadtest.outcome import Kind, Outcome
from loadtest.report import run_report
from loadtest.run_folder import Requests, RunFolder, State
from loadtest.schedule import Schedule
from loadtest.sender import Target

if TYPE_CHECKING:
    from loadtest.generator.master import Crew

_TICK_S = 0.2


@dataclass(frozen=True)
class Progress:
    """Where a run is; `due` requests were to be sent by now."""

    elapsed_s: float
    due: int
    answered: int
    refused: int
    failed: int


@dataclass(frozen=True)
class Watcher:
    """Who hears how a run goes on."""

    on_waiting: Callable[[int, int], None]
    on_progress: Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Results:
    """All of a run that its report shows."""

    run: Mapping[str, Any]
    requests: Requests
    planned: Planned
    summary: Mapping[str, Any]


class Tally:
    """Counts outcomes as they come in."""

    def __init__(self, schedule: Schedule, on_progress: Callable[[Progress], None]) -> None:
        self._times_s = schedule.times_s
        self._on_progress = on_progress
        self._counts = dict.fromkeys(Kind, 0)
        self._told_at = 0.0

    def add(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._counts[Kind(outcome.kind)] += 1

    def tick(self, elapsed_s: float) -> None:
        """Tell how it stands, a few times a second."""
        if time.monotonic() - self._told_at >= _TICK_S:
            self.tell(elapsed_s)

    def tell(self, elapsed_s: float) -> None:
        self._told_at = time.monotonic()
        due = int(np.searchsorted(self._times_s, elapsed_s, side="right"))
        counts = self._counts
        self._on_progress(Progress(elapsed_s, due, counts[Kind.ANSWERED], counts[Kind.REFUSED], counts[Kind.FAILED]))


def play(
    folder: RunFolder,
    schedule: Schedule,
    target: Target,
    crew: Crew,
    settings: Mapping[str, Any],
    watcher: Watcher,
    lateness_limit_ms: float = figures.DEFAULT_LATENESS_MS,
) -> Results:
    """Run a load to its end and report it.

    Ctrl-C ends the sending; what came back until then is reported as an interrupted run, and KeyboardInterrupt goes on.
    """
    from loadtest.generator.master import Master  # Locust takes a moment to load

    run: dict[str, Any] = {
        "state": State.RUNNING,
        "settings": dict(settings),
        "target": asdict(target),
        "workers": crew.workers,
        "lateness_limit_ms": lateness_limit_ms,
        "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder.write_schedule(schedule)
    folder.write_run(run)
    before = server.batch_counts(target)
    tally = Tally(schedule, watcher.on_progress)
    stopped_s: list[float] = [0.0]

    def tick(elapsed_s: float) -> None:
        stopped_s[0] = elapsed_s
        tally.tick(elapsed_s)

    try:
        with folder.writing(schedule) as writer:

            def take(outcomes: Sequence[Outcome]) -> None:
                writer.write(outcomes)
                tally.add(outcomes)

            playback = Master(crew, folder.log).play(target, schedule, take, watcher.on_waiting, tick)
            tally.tell(stopped_s[0])
        run["state"] = State.FAILED if playback.trouble else State.COMPLETE
        run["trouble"] = list(playback.trouble)
    except BaseException as error:
        run["state"] = State.INTERRUPTED if isinstance(error, KeyboardInterrupt) else State.FAILED
        run["trouble"] = [] if isinstance(error, KeyboardInterrupt) else [str(error) or type(error).__name__]
        run["stopped_s"] = max(0.0, stopped_s[0])
        raise
    finally:
        run["batches"] = server.batches_between(before, server.batch_counts(target))
        folder.write_run(run)
        results = write_report(folder)
    return results


def read_results(folder: RunFolder) -> Results:
    """What a folder holds, whatever state its run is in."""
    run = folder.read_run()
    requests, schedule = folder.read_requests(), folder.read_schedule()
    planned = _planned(schedule, run, requests)
    return Results(run, requests, planned, figures.summary(requests, planned, run["lateness_limit_ms"]))


def write_report(folder: RunFolder) -> Results:
    """Summary and HTML report of a run's folder; also of one that was killed."""
    results = read_results(folder)
    folder.write_summary({"run": results.run, **results.summary})
    folder.write_report(run_report(results))
    return results


def _planned(schedule: Schedule, run: Mapping[str, Any], requests: Requests) -> Planned:
    """All of a run that ended by itself; of another, what was due when it stopped."""
    hplms = np.array(schedule.hplms, np.str_)[schedule.hplm_of]
    match run["state"]:
        case State.COMPLETE:
            due = len(schedule)
        case State.RUNNING:  # nobody came to say when it stopped
            due = int(np.searchsorted(schedule.times_s, requests.done_s.max(initial=0.0), side="right"))
        case _:
            due = int(np.searchsorted(schedule.times_s, run.get("stopped_s", np.inf), side="right"))
    due = max(due, int(requests.numbers.max(initial=-1)) + 1)
    return Planned(schedule.times_s[:due], hplms[:due])
