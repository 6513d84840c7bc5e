"""What happened in a simulation, in columns while it runs, judged when it is over.

Whether a request was in time follows from its deadline and its batch, so the log holds batches and rejections only.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.scheduling.cost_model import BatchShape
from backends.scheduling.rejection import Rejection
from builder.placement.simulated_exits import Answered, Answers
from builder.placement.simulated_job import SimulatedJob
from builder.placement.simulated_load import Int64, SimulatedLoad

_PERCENTILES = (50, 90, 99)
_NUM_COLUMNS = 7


@dataclass(frozen=True, eq=False)
class Batches:
    """Shape: [batches] each; places, of their rows in the load, are [rows of all batches].

    `answered_us` is when rows were answered that did not leave early; `students` how many answered a batch, 0 where all
    layers did.
    """

    places: Int64
    started_us: Int64
    ended_us: Int64
    rows: Int64
    tokens: Int64
    adapters: Int64
    students: Int64
    answered_us: Int64

    @property
    def mean_students(self) -> float:
        """How many students answered a row."""
        return float(np.average(self.students, weights=self.rows))

    @property
    def num_changes(self) -> int:
        """How many batches were answered by another number of students than the one before."""
        return int(np.count_nonzero(np.diff(self.students)))


@dataclass(frozen=True, eq=False)
class Simulation:
    """What became of each request of a load.

    Shape:
        is_answered: `[requests]`, in time; the others were rejected.
        levels: `[requests]`, of those that were answered how, as numbers of `Answered`.
        answered_us: `[requests]`, of those that were answered the moment, of others without meaning.
        rejections: each reason's requests, as places in the load.
    """

    load: SimulatedLoad
    is_answered: NDArray[np.bool_]
    answered_us: Int64
    levels: NDArray[np.int8]
    rejections: Mapping[Rejection, Int64]
    batches: Batches

    @property
    def attainment(self) -> float:
        """Share of all requests that were answered in time."""
        return float(self.is_answered.mean()) if len(self.load) else 1.0

    @property
    def admitted_on_time(self) -> float:
        """Share of those that were let into the queue."""
        late = sum(len(self.rejections.get(reason, ())) for reason in (Rejection.LATE_WAITING, Rejection.LATE_COMPUTED))
        answered = int(self.is_answered.sum())
        return answered / (answered + late) if answered + late else 1.0

    @property
    def goodput_per_s(self) -> float:
        return float(self.is_answered.sum()) / self.load.duration_s if self.load.duration_s else 0.0

    @property
    def utility(self) -> float:
        """Sum of 1 / length over the requests answered in time."""
        return float((1.0 / self.load.tokens[self.is_answered]).sum())

    @property
    def latencies_us(self) -> Int64:
        """Times from arrival to answer, of the rows that were answered."""
        return (self.answered_us - self.load.arrived_us)[self.is_answered]

    @property
    def busy(self) -> float:
        """Share of the time from the start to the last answer in which a batch ran."""
        ended_us, started_us = self.batches.ended_us, self.batches.started_us
        return float((ended_us - started_us).sum() / ended_us[-1]) if len(ended_us) else 0.0

    def share_of(self, level: Answered) -> float:
        """Share of the answers that came about in this way."""
        return float((self.levels[self.is_answered] == level).mean()) if self.is_answered.any() else 0.0

    def figures(self) -> dict[str, float]:
        batches, latencies_us = self.batches, self.latencies_us
        found: dict[str, float] = {
            "requests": len(self.load),
            "attainment": self.attainment,
            "admitted_on_time": self.admitted_on_time,
            "goodput_per_s": self.goodput_per_s,
            "utility": self.utility,
        }
        if self.levels.any():
            found |= {"early": self.share_of(Answered.EARLY), "doubtful": self.share_of(Answered.DOUBTFUL)}
        if len(latencies_us):
            values_ms = np.percentile(latencies_us, _PERCENTILES) / 1e3
            found |= {f"p{percent}_ms": float(ms) for percent, ms in zip(_PERCENTILES, values_ms, strict=True)}
        if len(batches.rows):
            found |= {
                "batches": len(batches.rows),
                "rows_per_batch": float(batches.rows.mean()),
                "tokens_per_batch": float(batches.tokens.mean()),
                "adapters_per_batch": float(batches.adapters.mean()),
                "batch_ms": float((batches.ended_us - batches.started_us).mean() / 1e3),
                "busy": self.busy,
            }
        if batches.students.any():
            found["students"] = batches.mean_students
            found["changes_per_minute"] = 60 * batches.num_changes / self.load.duration_s
        return found

    def rejected(self) -> dict[str, int]:
        """How many, by reason."""
        return {reason.value: len(places) for reason, places in self.rejections.items() if len(places)}


class SimulationLog:
    """Written while the simulation runs: a few numbers per batch, one per request."""

    def __init__(self) -> None:
        self._places = array("q")
        self._batches = array("q")
        """Seven numbers for each."""
        self._answered_us = array("q")
        self._levels = array("b")
        """Of each row; these two only where rows may leave early."""
        self._rejected: dict[Rejection, array[int]] = {}

    @property
    def num_batches(self) -> int:
        return len(self._batches) // _NUM_COLUMNS

    def batch(
        self,
        start_us: int,
        end_us: int,
        shape: BatchShape,
        jobs: Sequence[SimulatedJob],
        num_students: int,
        answered_us: int,
        answers: Answers | None,
    ) -> None:
        """Note a batch that is done; `answers` where its rows may have left early."""
        self._places.extend([job.place for job in jobs])
        tokens = round(shape.tokens)
        self._batches.extend((start_us, end_us, shape.rows, tokens, shape.adapters, num_students, answered_us))
        if answers is not None:
            self._answered_us.extend(answers.answered_us)
            self._levels.extend(answers.levels)

    def reject(self, job: SimulatedJob, reason: Rejection) -> None:
        self._rejected.setdefault(reason, array("q")).append(job.place)

    def batches(self) -> Batches:
        return Batches(_column(self._places), *_column(self._batches).reshape(-1, _NUM_COLUMNS).T)

    def extend(self, other: SimulationLog) -> None:
        """Add what is in another log, of other requests."""
        self._places.extend(other._places)
        self._answered_us.extend(other._answered_us)
        self._levels.extend(other._levels)
        self._batches.extend(other._batches)
        for reason, places in other._rejected.items():
            self._rejected.setdefault(reason, array("q")).extend(places)

    def judged(self, load: SimulatedLoad, lost: Sequence[int] = ()) -> Simulation:
        """Judge each request; one that was admitted, ran in no batch and is not lost was late before it could run."""
        batches = self.batches()
        places = batches.places
        done_us = _column(self._answered_us) if self._answered_us else np.repeat(batches.answered_us, batches.rows)
        is_late = np.zeros(len(places), bool)
        if load.deadlines_us is not None:
            is_late = load.deadlines_us[places] <= done_us
        is_answered = np.zeros(len(load), bool)
        is_answered[places[~is_late]] = True
        answered_us = np.zeros(len(load), np.int64)
        answered_us[places] = done_us
        levels = np.zeros(len(load), np.int8)
        levels[places] = np.frombuffer(self._levels, np.int8) if self._levels else 0
        rejections = {reason: _column(rejected) for reason, rejected in self._rejected.items()}
        rejections.pop(Rejection.LATE_WAITING, None)  # they are among those that nothing else became of
        rejections[Rejection.LATE_COMPUTED] = np.sort(places[is_late])
        is_told = is_answered.copy()
        is_told[list(lost)] = True
        for rejected in rejections.values():
            is_told[rejected] = True
        rejections[Rejection.LATE_WAITING] = np.flatnonzero(~is_told)
        return Simulation(load, is_answered, answered_us, levels, rejections, batches)


def _column(values: array[int]) -> Int64:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)
