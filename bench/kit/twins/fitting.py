"""The costs of a server, fitted to what it traced during calibration loads.

How far requests slow batches down is fitted to windows of a few seconds, by their rates: what batches should take over
what they took falls in proportion to what is sent and received. Single batches would not do, because one that takes
long for any reason also sees more requests.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.trace import Lane
from bench.kit.twins.observing import Alone, Observed
from builder.placement.server_costs import CoreCosts, FrontCosts, Linear, ServerCosts
from builder.placement.simulated_stages import WHOLE, Stages
from builder.serving import TracedSpan

LOWER, UPPER = "hplm_lower", "hplm_upper"
_WINDOW_US = 2e6
_FIRST_OF_CALL, _LAST_OF_CALL = "tokenise", "fold"
_LEAST_SCATTER, _MOST_SCATTER = 0.3, 3.0
_LEAST_PART = 0.5
"""Batches that are less full scatter more, and hardly matter for what an overload comes to."""
_FEWEST_BATCHES = 8
_ROUNDS = 5
Spans = Mapping[str, Sequence[TracedSpan]]


@dataclass(frozen=True)
class Host:
    """What the threads that compute share their cores with.

    Attributes:
        most_stretch: See `CoreCosts`.
        is_shared: Whether what sends and rejects requests runs there too. Otherwise only rows that come to the engine,
            whose process takes them in itself, can slow it down, and whatever else did was not the requests.
        stages: How the layers are cut.
    """

    most_stretch: float
    is_shared: bool = True
    stages: Stages = WHOLE


@dataclass(frozen=True)
class TracedBatch:
    """A batch as the trace has it, and what the cost model says of it."""

    start_us: float
    took_us: float
    predicted_us: float
    rows: int

    @property
    def end_us(self) -> float:
        return self.start_us + self.took_us


@dataclass(frozen=True, eq=False)
class ServerTrace:
    """What one server did during one load, and what was sent to all that share its host."""

    batches: Sequence[TracedBatch]
    sent_us: NDArray[np.float64]
    received_us: NDArray[np.float64]
    """When rows came to the engine; one entry for each, ascending."""

    def counts(self, start_us: float, end_us: float) -> tuple[int, int]:
        """Return how many requests were sent, and how many rows received, from one moment to another."""
        sent, received = (np.searchsorted(times, (start_us, end_us)) for times in (self.sent_us, self.received_us))
        return int(sent[1] - sent[0]), int(received[1] - received[0])


def fit_costs(
    model: CostModel,
    spans: Spans,
    loads: Sequence[Observed],
    alone: Alone,
    host: Host,
    max_rows: int,
    measured: Mapping[str, Any],
) -> ServerCosts:
    """Return the costs of servers that are alike.

    Args:
        model: What the servers were told that batches take.
        spans: Of each server, during all that follows.
        loads: The calibration loads.
        alone: Requests on the idle servers.
        host: What computing shares its cores with.
        max_rows: Of a batch.
        measured: What the costs hold for.

    Raises:
        InvalidArgumentError: Too few batches ran.
    """
    traces = [traced for load in loads for traced in _traces_of(model, spans, load, host.stages)]
    if sum(len(traced.batches) for traced in traces) < _FEWEST_BATCHES:
        raise InvalidArgumentError("too few batches were traced to fit what they take; load the servers for longer")
    cores = _cores(traces, host)
    every = [span for of_server in spans.values() for span in of_server]
    reach_us, hop_us = _ways(every, alone)
    front = FrontCosts(reach_us, _linear(_calls(every)), hop_us)
    return ServerCosts(
        model,
        cores,
        front,
        _linear(_durations(every, Lane.STAGING, "stage")),
        _linear(_durations(every, Lane.ANSWERING, "answer")),
        _scatter(traces, cores, max_rows),
        measured,
    )


def _traces_of(model: CostModel, spans: Spans, load: Observed, stages: Stages) -> Iterator[ServerTrace]:
    ends_us = load.began_us + 1e6 * float(np.nanmax(load.played.requests.done_s))
    for of_server in spans.values():
        during = [span for span in of_server if load.began_us <= span.start_us < ends_us]
        ran = [_batch(model, span) for span in during if (span.lane, span.name) == (Lane.COMPUTE, "run")]
        batches = ran if len(stages.shares) == 1 else _passing(ran, stages)
        reads = [span for span in during if (span.lane, span.name) == (Lane.QUEUE, "read")]
        received = np.repeat([span.start_us for span in reads], [span.arguments["requests"] for span in reads])
        yield ServerTrace(batches, load.sent_us, np.sort(received.astype(np.float64)))


def _batch(model: CostModel, span: TracedSpan) -> TracedBatch:
    rows, tokens, squares, hplms = (span.arguments[name] for name in ("rows", "tokens", "squares", "hplms"))
    shape = BatchShape(rows, tokens, squares, hplms)
    return TracedBatch(span.start_us, span.duration_us, model.predict_us(shape), rows)


def _passing(batches: Sequence[TracedBatch], stages: Stages) -> Sequence[TracedBatch]:
    """Predict the whole ways of batches, on which they wait for those before them, from when each of them began.

    How long they wait depends on how slow stages are, and the other way round; a few rounds settle it.
    """
    ordered = passing = sorted(batches, key=lambda batch: batch.start_us)
    for _ in range(_ROUNDS if batches else 0):
        slowness = sum(batch.took_us for batch in passing) / sum(batch.predicted_us for batch in passing)
        passing = list(_on_their_ways(ordered, stages, slowness))
    return passing


def _on_their_ways(batches: Sequence[TracedBatch], stages: Stages, slowness: float) -> Iterator[TracedBatch]:
    left_us = [-math.inf] * (len(stages.shares) + 1)
    for batch in batches:
        end_us = batch.start_us
        for stage, share in enumerate(stages.shares):
            end_us = max(end_us + share * slowness * batch.predicted_us, left_us[stage + 1])
            left_us[stage] = end_us
        yield replace(batch, predicted_us=(end_us - batch.start_us) / slowness)


# --- what requests take from the cores ---


def _cores(traces: Sequence[ServerTrace], host: Host) -> CoreCosts:
    """Fit predicted over measured as `a - b * sent_rate - c * received_rate`, none of the three below 0."""
    windows = [window for traced in traces for window in _windows(traced)]
    rates = np.array([[1.0, -sent * host.is_shared, -received] for _, _, sent, received in windows])
    predicted, took = (np.array([window[column] for window in windows]) for column in (0, 1))
    a, b, c = _non_negative(rates, predicted / took, took)
    slowness = 1 / a
    return CoreCosts(slowness, slowness * b, slowness * c, host.most_stretch)


def _windows(traced: ServerTrace) -> Iterator[tuple[float, float, float, float]]:
    """Yield for every few seconds what batches should have taken, what they took, and the two rates by microsecond."""
    window: list[TracedBatch] = []
    for batch in traced.batches:
        window.append(batch)
        first_us, last_us = window[0].start_us, batch.end_us
        if last_us - first_us >= _WINDOW_US:
            sent, received = traced.counts(first_us, last_us)
            predicted_us = sum(batch.predicted_us for batch in window)
            took_us = sum(batch.took_us for batch in window)
            yield predicted_us, took_us, sent / (last_us - first_us), received / (last_us - first_us)
            window = []


def _non_negative(terms: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]) -> list[float]:
    """Weighted least squares with no coefficient below 0; each set of terms that has the first one is tried."""
    if not len(values):
        raise InvalidArgumentError("the calibration loads were too short to fit what requests take from the cores")
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-30)
    root = np.sqrt(weights)[:, None]
    best, best_loss = [0.0] * terms.shape[1], np.inf
    others = np.flatnonzero(np.abs(terms[:, 1:]).max(axis=0)) + 1
    for chosen in ([0, *some] for size in range(len(others) + 1) for some in combinations(others.tolist(), size)):
        part, *_ = np.linalg.lstsq(root * (terms / scale)[:, chosen], root[:, 0] * values, rcond=None)
        loss = float((weights * ((terms / scale)[:, chosen] @ part - values) ** 2).sum())
        if (part >= 0).all() and part[0] > 0 and loss < best_loss:
            best, best_loss = [0.0] * terms.shape[1], loss
            for place, value in zip(chosen, part.tolist(), strict=True):
                best[place] = float(value / scale[place])
    return best


def _scatter(traces: Sequence[ServerTrace], cores: CoreCosts, max_rows: int) -> tuple[float, ...]:
    """Return what full batches took beyond what requests took from them, over what they should; 1 on average."""
    pairs = [
        ((batch.took_us - cores.taken_us(*traced.counts(batch.start_us, batch.end_us))), batch.predicted_us)
        for traced in traces
        for batch in traced.batches
        if batch.rows >= _LEAST_PART * max_rows
    ]
    if len(pairs) < _FEWEST_BATCHES:
        return (1.0,)
    took, predicted = np.array(pairs).T
    ratios = np.clip(took / (cores.slowness * predicted), _LEAST_SCATTER, _MOST_SCATTER)
    return tuple((ratios / np.average(ratios, weights=predicted)).tolist())


# --- the ways of rows ---


def _linear(pairs: Sequence[tuple[int, float]]) -> Linear:
    """Fit a time to numbers of rows; neither part is below 0."""
    if not pairs:
        return Linear()
    rows, took = np.array(pairs, np.float64).T
    slope = float(np.cov(rows, took, bias=True)[0, 1] / rows.var()) if rows.var() else 0.0
    slope = min(max(0.0, slope), float(took.mean() / rows.mean()))
    return Linear(max(0.0, float(took.mean() - slope * rows.mean())), slope)


def _durations(spans: Sequence[TracedSpan], lane: Lane, name: str) -> list[tuple[int, float]]:
    return [(span.arguments["rows"], span.duration_us) for span in spans if (span.lane, span.name) == (lane, name)]


def _calls(spans: Sequence[TracedSpan]) -> list[tuple[int, float]]:
    """Return the rows of each call of an encoder, and what it took from the tokenizer to the last row."""
    began: dict[int, float] = {}
    calls = []
    for span in sorted(spans, key=lambda span: span.start_us):
        if span.lane is not Lane.RETRIEVAL:
            continue
        if span.name == _FIRST_OF_CALL:
            began.setdefault(span.pid, span.start_us)
        elif span.name == _LAST_OF_CALL and span.pid in began:
            calls.append((span.arguments["rows"], span.interval[1] - began.pop(span.pid)))
    return calls


def _ways(spans: Sequence[TracedSpan], alone: Alone) -> tuple[float, float]:
    """Return the times to the lower model, and from it to the engine, of requests that come alone."""
    reads = _starts(spans, LOWER, lambda span: span.start_us, "read")
    folded = _starts(spans, LOWER, lambda span: span.interval[1], _LAST_OF_CALL)
    taken = _starts(spans, UPPER, lambda span: span.start_us, "read")
    reaches, hops = [], []
    for sent_us in alone.sent_us:
        seen, done = _next(reads, sent_us), _next(folded, sent_us)
        came = None if done is None else _next(taken, done)
        if seen is not None and done is not None and came is not None:
            reaches.append(seen - sent_us)
            hops.append(came - done)
    return (statistics.median(reaches), statistics.median(hops)) if reaches else (0.0, 0.0)


def _starts(spans: Sequence[TracedSpan], process: str, moment: Callable[[TracedSpan], float], name: str) -> list[float]:
    return sorted(moment(span) for span in spans if span.process.startswith(process) and span.name == name)


def _next(moments: Sequence[float], after_us: float) -> float | None:
    index = bisect_left(moments, after_us)
    return moments[index] if index < len(moments) else None
