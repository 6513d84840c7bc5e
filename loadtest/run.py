"""One run: send, keep every outcome, and make the report, also of an interrupted run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from loadtest import figures, server
from loadtest.machine import machine
from loadtest.outcome import Kind, Outcome
from loadtest.report import run_report
from loadtest.results import Results, read_results
from loadtest.run_folder import RunFolder, State
from loadtest.schedule import Schedule
from loadtest.sender import Target
from loadtest.workers import Workers

if TYPE_CHECKING:
    from loadtest.generator.master import Ending

_TICK_S = 0.2


@dataclass(frozen=True)
class LoadTest:
    """A schedule, the server it is sent to, and the workers that send it; `settings` are for the report."""

    schedule: Schedule
    target: Target
    workers: Workers = field(default_factory=Workers)
    settings: Mapping[str, Any] = field(default_factory=dict)
    lateness_limit_ms: float = figures.DEFAULT_LATENESS_MS


@dataclass(frozen=True)
class Progress:
    """The progress of a run; `due` requests were to be sent by now."""

    elapsed_s: float
    due: int
    answered: int
    rejected: int
    failed: int
    unsent: int


@dataclass(frozen=True)
class Watcher:
    """Callbacks for a run's progress; `on_waiting` gets the workers that are connected and those that are needed."""

    on_waiting: Callable[[int, int], None]
    on_progress: Callable[[Progress], None]


class Tally:
    """Counts outcomes as they come in."""

    def __init__(self, schedule: Schedule, on_progress: Callable[[Progress], None]) -> None:
        self._times_s = schedule.times_s
        self._on_progress = on_progress
        self._counts = dict.fromkeys(Kind, 0)
        self._reported_at = 0.0

    def add(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._counts[Kind(outcome.kind)] += 1

    def tick(self, elapsed_s: float) -> None:
        """Report progress, a few times a second at most."""
        if time.monotonic() - self._reported_at >= _TICK_S:
            self.report(elapsed_s)

    def report(self, elapsed_s: float) -> None:
        self._reported_at = time.monotonic()
        due = int(np.searchsorted(self._times_s, elapsed_s, side="right"))
        ends = {kind.value: count for kind, count in self._counts.items()}
        self._on_progress(Progress(elapsed_s, due, **ends))


class Playback:
    """Plays one load into a folder and reports it, also if it is interrupted.

    Holds what the report needs of a run that did not come to its end: its state, what went wrong, when it stopped.
    """

    def __init__(self, folder: RunFolder, test: LoadTest, watcher: Watcher) -> None:
        self._folder = folder
        self._test = test
        self._watcher = watcher
        self._tally = Tally(test.schedule, watcher.on_progress)
        self._elapsed_s = 0.0
        self._run: dict[str, Any] = {
            "state": State.RUNNING,
            "settings": dict(test.settings),
            "target": asdict(test.target),
            "workers": test.workers.count,
            "lateness_limit_ms": test.lateness_limit_ms,
            "server": server.server_settings(test.target),
            "machine": machine(),
            "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def play(self) -> Results:
        """Run the load to its end.

        Ctrl-C ends the sending; what came back until then is reported as an interrupted run, and KeyboardInterrupt is
        raised again.
        """
        self._folder.write_schedule(self._test.schedule)
        self._folder.write_run(self._run)
        before = server.batch_counts(self._test.target)
        try:
            self._finish(self._send())
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._run["batches"] = server.batches_between(before, server.batch_counts(self._test.target))
            self._folder.write_run(self._run)
            results = write_report(self._folder)
        return results

    def _send(self) -> Ending:
        from loadtest.generator.master import Master  # importing Locust takes a second

        test = self._test
        with self._folder.writing(test.schedule) as writer:

            def take(outcomes: Sequence[Outcome]) -> None:
                writer.write(outcomes)
                self._tally.add(outcomes)

            master = Master(test.workers, self._folder.log)
            ending = master.play(test.target, test.schedule, take, self._watcher.on_waiting, self._tick)
        self._tally.report(self._elapsed_s)
        return ending

    def _tick(self, elapsed_s: float) -> None:
        self._elapsed_s = elapsed_s
        self._tally.tick(elapsed_s)

    def _finish(self, ending: Ending) -> None:
        self._run["state"] = State.FAILED if ending.trouble else State.COMPLETE
        self._run["trouble"] = list(ending.trouble)
        self._run["client_cpu_s"] = round(ending.client_cpu_s, 3)

    def _stop(self, error: BaseException) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        self._run["state"] = State.INTERRUPTED if interrupted else State.FAILED
        self._run["trouble"] = [] if interrupted else [str(error) or type(error).__name__]
        self._run["stopped_s"] = max(0.0, self._elapsed_s)


def write_report(folder: RunFolder) -> Results:
    """Summary and HTML report of a run's folder; also of one that was killed."""
    results = read_results(folder)
    folder.write_summary({"run": results.run, **results.summary})
    folder.write_report(run_report(results))
    return results
