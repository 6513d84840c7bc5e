"""A simulated workload, described in the language of `workload.spec` and relative to one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.settings import Capacity
from backends.scheduling.tenants import tenant_of
from builder.placement.simulated_load import Workload
from workload.arrivals import Arrivals, TraceArrivals
from workload.deadlines import Deadlines, TraceDeadlines
from workload.errors import WorkloadError
from workload.lengths import Lengths, TraceLengths
from workload.spec import (
    ArrivalSpec,
    LoadSpec,
    parse_arrivals,
    parse_deadlines,
    parse_lengths,
    parse_load,
    parse_tenants,
)
from workload.tenants import Tenants, TraceTenants
from workload.traces import Trace, read_trace

_TYPICAL_ROWS = 10_000
_LONGEST_RETRIEVAL_MS = 3_600_000
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Machine:
    """The machine that loads and deadlines are relative to."""

    cost_model: CostModel
    capacity: Capacity
    count: int = 1
    """How many such machines, or stages of one, share a load; a full batch is that of one."""

    def full_batch(self, lengths: Lengths, tenants: Tenants) -> BatchShape:
        """A batch of typical rows, as many as fit."""
        rng = np.random.default_rng(0)
        tokens, keys = lengths.draw(_TYPICAL_ROWS, rng), tenants.draw(_TYPICAL_ROWS, rng)
        rows = max(1, min(self.capacity.max_rows, int(self.capacity.max_tokens / tokens.mean())))
        rows = max(1, min(rows, int(rows * self.capacity.max_adapters / max(1.0, _distinct(keys, rows)))))
        squares = float((tokens.astype(np.float64) ** 2).mean())
        adapters = min(self.capacity.max_adapters, round(_distinct(keys, rows)))
        return BatchShape(rows, round(rows * float(tokens.mean())), round(rows * squares), adapters)

    def rate_per_s(self, lengths: Lengths, tenants: Tenants) -> float:
        """Return the rate of such requests that one full batch after the other answers."""
        batch = self.full_batch(lengths, tenants)
        batch_us = self.cost_model.predict_us(batch)
        if not batch_us:
            raise WorkloadError("by this cost model a batch takes no time, so there is no load that fills it")
        return self.count * 1e6 * batch.rows / batch_us


@dataclass(frozen=True)
class DescribedWorkload:
    """Texts of `workload.spec`.

    Args:
        load: None for the machine's capacity, or for a trace as it was recorded.
        arrival_defaults: Parameters that `arrivals` may leave out.
        speed: Of a trace; 2 plays an hour in half an hour.
    """

    arrivals: str = "poisson"
    load: str | None = None
    lengths: str = "normal:deviation=20"
    tenants: str = "zipf"
    deadlines: str | None = None
    retrieval_ms: float = 0.0
    speed: float = 1.0
    arrival_defaults: Mapping[str, float] = field(default_factory=dict)

    def on(self, machine: Machine) -> Workload:
        """Make the workload for a machine.

        Raises:
            WorkloadError: A text is not of the language, or says something impossible.
        """
        load = None if self.load is None else parse_load(self.load, bare_unit="/s")
        lengths, tenants = self._lengths(), self._tenants()
        if not 0 <= self.retrieval_ms <= _LONGEST_RETRIEVAL_MS:
            raise WorkloadError(f"a retrieval takes 0 to {_LONGEST_RETRIEVAL_MS:,} ms, not {self.retrieval_ms}")
        arrivals = self._arrivals(load, machine.rate_per_s(lengths, tenants))
        deadlines = None if self.deadlines is None else self._deadlines(self.deadlines, machine, lengths, tenants)
        retrieval_us = round(1_000 * self.retrieval_ms)
        return Workload(arrivals, lengths, tenants, deadlines, retrieval_us, self._names(tenants))

    def _names(self, tenants: Tenants) -> tuple[str, ...]:
        """Return the tenants' names, where a trace has them."""
        if self.trace is None or not isinstance(tenants, TraceTenants):
            return ()
        return tuple(map(tenant_of, self.trace.tenant_names))

    def duration_s(self, requested_s: float | None) -> float:
        """The requested duration, but a trace ends with its last request; by default an hour, or the whole trace."""
        if self.trace is None:
            return _HOUR_S if requested_s is None else requested_s
        own_s = max(1.0, float(np.nextafter(self.trace.duration_s / self.speed, np.inf)))
        return own_s if requested_s is None else min(requested_s, own_s)

    @cached_property
    def trace(self) -> Trace | None:
        return None if self._arrival_spec.trace is None else read_trace(self._arrival_spec.trace)

    @cached_property
    def _arrival_spec(self) -> ArrivalSpec:
        return parse_arrivals(self.arrivals, self.arrival_defaults)

    def _arrivals(self, load: LoadSpec | None, capacity_per_s: float) -> Arrivals:
        if self.trace is None:
            return self._arrival_spec.at_rate(capacity_per_s if load is None else load.rate_per_s(capacity_per_s))
        if load is None:
            return TraceArrivals(self.trace.times_s, self.speed)
        return TraceArrivals.at_rate(self.trace.times_s, load.rate_per_s(capacity_per_s), self.speed)

    def _lengths(self) -> Lengths:
        lengths = parse_lengths(self.lengths)
        if lengths is not None:
            return lengths
        if self.trace is None or self.trace.tokens is None:
            raise WorkloadError("lengths of a trace need --arrivals trace:FILE whose file has tokens")
        return TraceLengths(self.trace.tokens)

    def _tenants(self) -> Tenants:
        spec = parse_tenants(self.tenants, count_is_known=False)
        if spec is not None:
            return spec.among(spec.count)
        if self.trace is None or self.trace.tenants is None:
            raise WorkloadError("tenants of a trace need --arrivals trace:FILE whose file has tenants")
        return TraceTenants(self.trace.tenants)

    def _deadlines(self, text: str, machine: Machine, lengths: Lengths, tenants: Tenants) -> Deadlines:
        spec = parse_deadlines(text)
        if spec is not None:
            return spec.after(machine.cost_model.predict_us(machine.full_batch(lengths, tenants)) / 1e3)
        if self.trace is None or self.trace.deadlines_ms is None:
            raise WorkloadError("deadlines of a trace need --arrivals trace:FILE whose file has deadlines")
        return TraceDeadlines(self.trace.deadlines_ms)


def _distinct(keys: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int) -> float:
    """The mean number of different keys among so many rows."""
    blocks = keys[: len(keys) // rows * rows].reshape(-1, rows)
    ordered = np.sort(blocks, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())
