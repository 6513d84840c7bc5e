"""The content of a run's folder: its requests, what was planned, and the figures of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest import figures
from loadtest.breakdown import by_hplm, by_tenant
from loadtest.figures import Planned
from loadtest.levels import answer_figures, by_level
from loadtest.requests import Requests
from loadtest.run_folder import RunFolder, State
from loadtest.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Results:
    """All of a run that its report shows."""

    run: Mapping[str, Any]
    requests: Requests
    planned: Planned
    summary: Mapping[str, Any]


def read_results(folder: RunFolder) -> Results:
    """Read what a folder holds, in whatever state its run is."""
    run = folder.read_run()
    requests, schedule = folder.read_requests(), folder.read_schedule()
    planned = _planned(schedule, run, requests)
    summary = figures.summary(requests, planned, run["lateness_limit_ms"], run.get("client_cpu_s"))
    summary |= answer_figures(requests) | {"by_level": by_level(requests)}
    summary |= {"by_tenant": by_tenant(requests, planned), "by_hplm": by_hplm(requests, planned)}
    return Results(run, requests, planned, summary)


def _planned(schedule: Schedule, run: Mapping[str, Any], requests: Requests) -> Planned:
    """All requests of a run that ended by itself; for another one those due when it stopped."""
    hplms = np.array(schedule.hplms, np.str_)[schedule.hplm_of]
    match run["state"]:
        case State.COMPLETE:
            due = len(schedule)
        case State.RUNNING:  # killed, so its end is not recorded
            due = int(np.searchsorted(schedule.times_s, requests.done_s.max(initial=0.0), side="right"))
        case _:
            due = int(np.searchsorted(schedule.times_s, run.get("stopped_s", np.inf), side="right"))
    due = max(due, int(requests.numbers.max(initial=-1)) + 1)
    return Planned(schedule.times_s[:due], hplms[:due])
