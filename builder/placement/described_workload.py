"""A workload in the words of a command line: `gamma`, `trace:azure.csv`, `zipf:1000`, `1.5x`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from backends.errors import InvalidArgumentError, shown
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.policy import Capacity
from builder.placement.simulated_load import ConstantDelay, Workload
from workload.arrivals import (
    Arrivals,
    DeterministicArrivals,
    GammaArrivals,
    MarkovModulatedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import FixedLengths, Lengths, NormalLengths, TraceLengths
from workload.tenants import Tenants, TraceTenants, UniformTenants, ZipfTenants
from workload.traces import Trace, read_trace

TRACE = "trace"
_TYPICAL_ROWS = 10_000
_LONGEST_RETRIEVAL_MS = 3_600_000
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Machine:
    """What a load is relative to."""

    cost_model: CostModel
    capacity: Capacity

    def full_batch(self, lengths: Lengths, tenants: Tenants) -> BatchShape:
        """A batch of typical rows, as many as fit."""
        chance = np.random.default_rng(0)
        tokens, keys = lengths.draw(_TYPICAL_ROWS, chance), tenants.draw(_TYPICAL_ROWS, chance)
        rows = max(1, min(self.capacity.max_rows, int(self.capacity.max_tokens / tokens.mean())))
        rows = max(1, min(rows, int(rows * self.capacity.max_adapters / max(1.0, _distinct(keys, rows)))))
        squares = float((tokens.astype(np.float64) ** 2).mean())
        adapters = min(self.capacity.max_adapters, round(_distinct(keys, rows)))
        return BatchShape(rows, round(rows * float(tokens.mean())), round(rows * squares), adapters)

    def rate_per_s(self, lengths: Lengths, tenants: Tenants) -> float:
        """Requests of this kind that it answers in one full batch after the other."""
        batch = self.full_batch(lengths, tenants)
        batch_us = self.cost_model.predict_us(batch)
        if not batch_us:
            raise WorkloadError("by this cost model a batch takes no time, so there is no load that fills it")
        return 1e6 * batch.rows / batch_us


@dataclass(frozen=True)
class DescribedWorkload:
    """Each as the command line names it; None for a load is the machine's capacity, or a trace as it was recorded."""

    arrivals: str = "poisson"
    load: str | None = None
    lengths: str = "normal:20"
    tenants: str = "zipf:1000"
    deadlines: str | None = None
    retrieval_ms: float = 0.0
    cv: float = 2.0
    burst_ratio: float = 9.0
    burst_s: float = 2.0
    speed: float = 1.0

    def on(self, machine: Machine) -> Workload:
        """The workload for this machine.

        Raises:
            InvalidArgumentError: A word is not one of ours, or says something impossible.
        """
        with workload_errors():
            lengths, tenants = self._lengths(), self._tenants()
            if not 0 <= self.retrieval_ms <= _LONGEST_RETRIEVAL_MS:
                raise WorkloadError(f"a retrieval takes 0 to {_LONGEST_RETRIEVAL_MS:,} ms, not {self.retrieval_ms}")
            return Workload(
                self._arrivals(machine.rate_per_s(lengths, tenants)),
                lengths,
                tenants,
                self._deadlines(machine.cost_model.predict_us(machine.full_batch(lengths, tenants))),
                ConstantDelay(round(1_000 * self.retrieval_ms)),
            )

    def duration_s(self, wanted_s: float | None) -> float:
        """As long as is wanted; left out, an hour, or a trace to its last request. No trace lasts longer than that."""
        if self.trace is None:
            return _HOUR_S if wanted_s is None else wanted_s
        own_s = max(1.0, float(np.nextafter(self.trace.duration_s / self.speed, np.inf)))
        return own_s if wanted_s is None else min(wanted_s, own_s)

    @cached_property
    def trace(self) -> Trace | None:
        kind, path = _split(self.arrivals)
        return read_trace(Path(path)) if kind == TRACE and path else None

    def _arrivals(self, capacity_per_s: float) -> Arrivals:
        if self.trace is not None:
            if self.load is None:
                return TraceArrivals(self.trace.times_s, self.speed)
            return TraceArrivals.at_rate(self.trace.times_s, self._rate_per_s(capacity_per_s), self.speed)
        rate_per_s = self._rate_per_s(capacity_per_s)
        match self.arrivals:
            case "poisson":
                return PoissonArrivals(rate_per_s)
            case "even":
                return DeterministicArrivals(rate_per_s)
            case "gamma":
                return GammaArrivals(rate_per_s, self.cv)
            case "mmpp":
                return MarkovModulatedArrivals.bursts(rate_per_s, self.burst_ratio, self.burst_s)
        raise WorkloadError(f"arrivals {shown(self.arrivals)} are not poisson, even, gamma, mmpp or trace:FILE")

    def _rate_per_s(self, capacity_per_s: float) -> float:
        return _times(self.load or "1x", capacity_per_s, "load")

    def _lengths(self) -> Lengths:
        kind, value = _split(self.lengths)
        if kind == "normal":
            return NormalLengths(_number(value, "lengths"))
        if kind == "fixed":
            return FixedLengths(int(_number(value, "lengths")))
        if kind == TRACE and not value:
            if self.trace is None or self.trace.tokens is None:
                raise WorkloadError("lengths of a trace need --arrivals trace:FILE whose file has tokens")
            return TraceLengths(self.trace.tokens)
        raise WorkloadError(f"lengths {shown(self.lengths)} are not normal:DEVIATION, fixed:TOKENS or trace")

    def _tenants(self) -> Tenants:
        kind, value = _split(self.tenants)
        if kind == "uniform":
            return UniformTenants(int(_number(value, "tenants")))
        if kind == "zipf":
            count, exponent = _split(value)
            return ZipfTenants(int(_number(count, "tenants")), _number(exponent or "1", "tenants"))
        if kind == TRACE and not value:
            if self.trace is None or self.trace.tenants is None:
                raise WorkloadError("tenants of a trace need --arrivals trace:FILE whose file has tenants")
            return TraceTenants(self.trace.tenants)
        raise WorkloadError(f"tenants {shown(self.tenants)} are not uniform:COUNT, zipf:COUNT:EXPONENT or trace")

    def _deadlines(self, batch_us: float) -> UniformDeadlines | None:
        if self.deadlines is None:
            return None
        shortest, _, longest = self.deadlines.partition("-")
        if not shortest:
            raise WorkloadError(f"deadlines must be above 0, not {shown(self.deadlines)}")
        bounds_ms = [_times(bound, batch_us / 1e3, "deadlines") for bound in (shortest, longest or shortest)]
        return UniformDeadlines(*(max(1, round(bound)) for bound in bounds_ms))


@contextmanager
def workload_errors() -> Iterator[None]:
    """What is wrong with a load is told as any other wrong argument."""
    try:
        yield
    except WorkloadError as error:
        raise InvalidArgumentError(str(error)) from error


def _distinct(keys: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int) -> float:
    """Different ones among so many rows, on average."""
    blocks = keys[: len(keys) // rows * rows].reshape(-1, rows)
    ordered = np.sort(blocks, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())


def _split(text: str) -> tuple[str, str]:
    kind, _, value = text.partition(":")
    return kind, value


def _times(text: str, unit: float, name: str) -> float:
    """A number as it is, or with an x behind it so many units."""
    value = _number(text.removesuffix("x"), name)
    if value <= 0:
        raise WorkloadError(f"{name} must be above 0, not {shown(text)}")
    return value * unit if text.endswith("x") else value


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise WorkloadError(f"{name}: {shown(text)} is no number")
    return value
