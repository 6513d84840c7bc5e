"""Traffic that drifts, sent to paced servers: on one placement, on one made anew meanwhile, and on each window's own.

The servers are those of `hplm fleet serve`, behind its gateway; only their devices wait instead of computing. A new
placement is made of what the servers have recorded since the window's begin, by the planner of `hplm place`, and
`hplm fleet apply` restarts what is to hold other roots while requests come. All roots are small, so a paced server
rejects requests for those that it does not hold: a real one would load them, or have no memory for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from backends.held_roots import holds
from bench.kit.drifting.home import UPPER, DriftHome, drift_home, write_rows
from bench.kit.drifting.judgement import WAYS, Moved, WindowRun
from bench.kit.fleet.load import FleetClients
from bench.kit.fleet.running import RunningFleet, running_fleet
from bench.kit.placing.drift import DriftSettings, Way, Window, hystereses_of, windows_of
from bench.kit.progress import one_by_one
from bench.kit.served import Serving
from bench.kit.twins.paced import paced_code
from builder.fleet.fleet_folder import FleetFolder, ServerEntry
from builder.fleet.fleet_placement import FleetPlacement
from builder.placement.planner.hysteresis import Hysteresis
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Plan
from builder.placement.planner.plan_file import write_plan
from builder.placement.planner.planner import plan
from builder.placement.planner.replan import replan
from builder.traffic.trace import write_trace
from builder.traffic.traffic import read_traffic
from loadtest.in_process import Played
from loadtest.schedule import Row

_LOWER = {"missing": "fallback", "record_traffic": "true"}
_BEGIN_S = 2.0
"""For the clients to have their schedule."""
_LOADED_AT_ONCE = 1e15
"""Bytes a second: what reading these small roots takes is part of a restart."""
_WARM_IN_FLIGHT = 8
_FULL_ROWS, _FULL_IN_FLIGHT = 120, 4


@dataclass(frozen=True)
class DriftRuns:
    """What was played, and what was known before.

    Attributes:
        costs: What a restart takes where nothing is asked.
        slowness: What a row takes of a full server, its watchdog's rows too, over the pace of its device.
    """

    runs: Sequence[WindowRun]
    costs: MoveCosts
    slowness: float


def played_drift(settings: DriftSettings, seed: int, ways: Sequence[Way] = WAYS) -> DriftRuns:
    """Start the servers with the placement of the first window, and play the windows after it all ways."""
    history, *windows = windows_of(settings, seed)
    with drift_home(settings, seed) as home, FleetClients() as clients:
        rng = np.random.default_rng(seed)
        first = plan(home.fleet(write_rows(home.rows(history.alike, rng), home.home.path / "first.csv"), seed), seed)
        names = [f"server-{number}" for number in range(1, settings.num_devices + 1)]
        placed = FleetPlacement.of_plan(first, names, home.roots, None)
        placed.write(FleetFolder(home.home).placement)
        code = paced_code(home.home.path / "paced", home.pace)
        serving = Serving(lower=_LOWER, upper=UPPER, code=code)
        with running_fleet(home.home, serving, settings.num_devices, ["--shared-cores"]) as fleet:
            drift = _Drift(home, fleet, clients, settings, first, windows, seed)
            drift.warm()
            slowness, costs = drift.slowness(), drift.costs()
            drift.warm()  # the server that was restarted
            runs = [run for way in one_by_one(ways, "replace", "paced") for run in drift.play(way)]
            return DriftRuns(runs, costs, slowness)


class _Drift:
    """Plays the windows on a running fleet."""

    def __init__(
        self,
        home: DriftHome,
        fleet: RunningFleet,
        clients: FleetClients,
        settings: DriftSettings,
        first: Plan,
        windows: Sequence[Window],
        seed: int,
    ) -> None:
        self._home, self._fleet, self._clients = home, fleet, clients
        self._settings, self._seed = settings, seed
        self._placed = first
        rng = np.random.default_rng(seed)
        self._windows = [(home.rows(window.traffic, rng), home.rows(window.alike, rng)) for window in windows]
        self._costs = MoveCosts()

    def warm(self) -> None:
        """Send each server one request for each hPLM of the roots that it holds."""
        self._fleet.wait_ready()
        for server in self._fleet.servers():
            rows = [(hplm, self._home.texts[0]) for hplm in self._held(server)]
            if rows:
                self._clients.full(f"127.0.0.1:{server.grpc}", rows, _WARM_IN_FLIGHT)

    def _held(self, server: ServerEntry) -> list[str]:
        """Return the hPLMs of a server's roots."""
        return [
            hplm
            for root, hplms in zip(self._home.roots, self._home.hplms, strict=True)
            if holds(server.roots, root)
            for hplm in hplms
        ]

    def slowness(self) -> float:
        """Keep a server full with rows for the roots that it holds."""
        server, hplms = next((each, held) for each in self._fleet.servers() if (held := self._held(each)))
        rows = [(hplms[number % len(hplms)], self._home.texts[0]) for number in range(_FULL_ROWS)]
        per_s = self._clients.full(f"127.0.0.1:{server.grpc}", rows, _FULL_IN_FLIGHT).rows_per_s(_FULL_IN_FLIGHT)
        return 1e6 / per_s / self._settings.alone_us

    def costs(self) -> MoveCosts:
        """Measure a restart before anything is predicted."""
        began = time.monotonic()
        self._fleet.order("drain", self._fleet.servers()[0].server, "--restart")
        took_s = time.monotonic() - began
        self._costs = MoveCosts(took_s, took_s, _LOADED_AT_ONCE)
        return self._costs

    def play(self, way: Way) -> Iterator[WindowRun]:
        """Play all windows one way; the placement of the first window has to be in force before the first two ways."""
        for number, (rows, alike) in enumerate(self._windows, start=1):
            if way is Way.FREE:
                self._place(self._own(alike))
                self.warm()
            begun, starts_at = self._begin(rows)
            hysteresis = hystereses_of(self._settings, self._costs).get(way)
            moved, away = (Moved(), ()) if hysteresis is None else self._move(starts_at, hysteresis)
            yield WindowRun(way, number, begun.result().requests, moved, away)

    def _begin(self, rows: Sequence[Row]) -> tuple[Future[Played], float]:
        starts_at = time.monotonic() + _BEGIN_S
        return self._clients.begin(self._fleet.grpc_url, rows, starts_at), starts_at

    def _move(self, starts_at: float, hysteresis: Hysteresis) -> tuple[Moved, tuple[str, ...]]:
        """Place anew what was recorded of the first part of a window, if that pays."""
        settings = self._settings
        since_us = time.time_ns() // 1_000
        time.sleep(max(0.0, starts_at + settings.observed * settings.window_s - time.monotonic()))
        trace = self._home.home.path / "recorded.csv"
        write_trace(read_traffic(self._home.home.traffic).between(since_us, None), trace)
        made = replan(self._home.fleet(trace, self._seed), self._placed, hysteresis, self._seed)
        steps = () if made.change is None else made.change.steps
        if not steps:
            return Moved(), ()
        took_s = self._place(made)
        away = dict.fromkeys(name for step in steps for name in step.interrupts)
        return Moved(len(steps), took_s), tuple(away)

    def _own(self, alike: Sequence[Row]) -> Plan:
        """Return the placement for requests of a window's kind."""
        return plan(self._home.fleet(write_rows(alike, self._home.home.path / "alike.csv"), self._seed), self._seed)

    def _place(self, made: Plan) -> float:
        """Apply a plan; returns the seconds that it took."""
        write_plan(self._home.home.placement, made)
        began = time.monotonic()
        self._fleet.order("apply", "--placement", str(self._home.home.placement))
        self._placed = made
        return time.monotonic() - began
