"""What traffic that drifts came to on paced servers: on time, lost, and what the moves took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from bench.kit.fleet.judgement import Bools, failed
from bench.kit.placing.drift import Way
from loadtest.outcome import Kind
from loadtest.requests import Requests

WAYS = (Way.STATIC, Way.REPLACED, Way.FREE)


@dataclass(frozen=True)
class Moved:
    """Servers that were restarted to hold other roots, and how long all of it took, one after the other."""

    servers: int = 0
    took_s: float = 0.0


@dataclass(frozen=True)
class WindowRun:
    """One window, played one way.

    Attributes:
        requests: All that were planned, with their outcomes.
        moved: Within the window; a free placement is there before.
        away: Roots of the traffic that stood nowhere while a server was restarted, by the plan.
    """

    way: Way
    window: int
    requests: Requests
    moved: Moved = Moved()
    away: tuple[str, ...] = ()

    @property
    def on_time(self) -> int:
        return int(self.requests.in_time.sum())

    @property
    def lost(self) -> int:
        """Requests that got neither an answer nor a rejection by a server, those too that the clients sent too late."""
        return int((failed(self.requests) | self._unsent).sum())

    @property
    def _unsent(self) -> Bools:
        """Shape: [requests]."""
        return np.equal(self.requests.kinds, str(Kind.UNSENT))

    def row(self) -> dict[str, object]:
        unanswered = Counter(reason for reason in self.requests.reasons.tolist() if reason)
        return {
            "part": "paced",
            "way": self.way,
            "window": self.window,
            "requests": len(self.requests),
            "attainment": self.on_time / max(1, len(self.requests)),
            "lost": self.lost,
            "of them not sent": int(self._unsent.sum()),
            "restarted servers": self.moved.servers,
            "restarts took s": self.moved.took_s,
            "roots without a server meanwhile": " ".join(self.away),
            "sent late p99 ms": 1e3 * float(np.percentile(self.requests.lag_s, 99)),
            "most not answered by": next((reason for reason, _ in unanswered.most_common(1)), None),
        }


def paced_figures(runs: Sequence[WindowRun], predicted: Mapping[str, float]) -> dict[str, float]:
    """Return shares of all requests by way, and how far the simulation was from them.

    `predicted` are the simulation's figures of the same requests.
    """
    share = {way: _share([run for run in runs if run.way == way]) for way in WAYS}
    moved = [run.moved for run in runs if run.moved.servers]
    restarted = sum(each.servers for each in moved)
    errors = [abs(share[way] - predicted[f"attainment_{way}"]) for way in WAYS]
    return {
        **{f"paced_attainment_{way}": share[way] for way in WAYS},
        **{f"predicted_attainment_{way}": predicted[f"attainment_{way}"] for way in WAYS},
        "paced_replaced_over_static_points": 100 * (share[Way.REPLACED] - share[Way.STATIC]),
        "paced_free_over_replaced_points": 100 * (share[Way.FREE] - share[Way.REPLACED]),
        "predicted_error_points": 100 * mean(errors),
        "lost_requests": float(sum(run.lost for run in runs)),
        "paced_restarts": float(restarted),
        "paced_restart_s": sum(each.took_s for each in moved) / restarted if restarted else 0.0,
    }


def _share(runs: Sequence[WindowRun]) -> float:
    return sum(run.on_time for run in runs) / max(1, sum(len(run.requests) for run in runs))
