"""A recorded traffic as the planner meets it: its hPLMs become the models of a home, its deadlines moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.errors import InvalidArgumentError, NotFoundError, shown
from backends.home import Home
from backends.registry.registry import Registry
from builder.placement.planner.home_models import RootModels, models_of
from builder.placement.planner.model import Model
from builder.placement.planner.plan import Device
from builder.placement.planner.planner import Fleet
from builder.placement.planner.traffic import Int64, Traffic
from workload.checks import check_positive
from workload.deadlines import LONGEST_DEADLINE_MS
from workload.spec import parse_deadlines
from workload.traces import Trace, read_trace

_US = 1_000_000
_NAMED = 3


@dataclass(frozen=True)
class Recorded:
    """What an operator says of a recorded traffic.

    Attributes:
        deadlines: In the words of `hplm simulate`; None for those of the traffic.
        speed: 2 plays an hour in half an hour.
        tokens: The length of texts whose length the traffic does not say.
        slots: Adapters of each root that a device keeps, at most.
    """

    path: Path
    deadlines: str | None = None
    speed: float = 1.0
    tokens: float = 20.0
    slots: int = 256


def recorded_fleet(
    home: Home, registry: Registry, recorded: Recorded, devices: tuple[Device, ...], seed: int, hop_us: int = 0
) -> Fleet:
    """Read all that a plan is made of."""
    check_positive(speed=recorded.speed, tokens=recorded.tokens)
    trace = read_trace(recorded.path)
    roots = [entry.name for entry in registry.roots()]
    roots_of = {**{entry.id: entry.domain.root for entry in registry.hplms()}, **{root: root for root in roots}}
    models = models_of(home, registry, mean_tokens(trace, roots_of, roots, recorded.tokens), recorded.slots)
    traffic = traffic_of(trace, recorded.path, models, recorded.deadlines, recorded.speed, seed)
    return Fleet(models.models, devices, models.fingerprints, traffic, hop_us, num_hplms(trace, models))


def mean_tokens(trace: Trace, roots_of: Mapping[str, str], roots: Sequence[str], default: float) -> dict[str, float]:
    """Return the mean length of the texts for each root; `default` where the traffic does not say."""
    if trace.tokens is None or trace.tenants is None:
        return dict.fromkeys(roots, default)
    found = dict.fromkeys(roots, default)
    names = np.array([roots_of.get(name, "") for name in trace.tenant_names])
    of_requests = names[trace.tenants]
    for root in roots:
        if len(lengths := trace.tokens[of_requests == root]):
            found[root] = float(lengths.mean())
    return found


def num_hplms(trace: Trace, models: RootModels) -> tuple[int, ...]:
    """Count the hPLMs of each model that are asked."""
    asked = [models.number_of[name] for name in trace.tenant_names] if trace.tenants is not None else []
    return tuple(np.bincount(np.array(asked, np.int64), minlength=len(models.models)).tolist())


def traffic_of(trace: Trace, path: Path, models: RootModels, deadlines: str | None, speed: float, seed: int) -> Traffic:
    """Make the traffic of a trace, which `path` names in messages.

    `deadlines` are in the words of `hplm simulate`, and take the place of those of the trace. A speed of 2 plays an
    hour in half an hour, and leaves deadlines as they are.

    Raises:
        NotFoundError: The trace has requests for hPLMs that this home does not have.
        InvalidArgumentError: Nothing says which hPLMs are asked, or by when they are to answer.
    """
    arrived_us = (trace.times_s / speed * _US).astype(np.int64)
    numbers = _models(trace, path, models)
    patience_us = _patience_us(trace, path, models.models, numbers, deadlines, seed)
    return Traffic(arrived_us, numbers, arrived_us + patience_us)


def _models(trace: Trace, path: Path, models: RootModels) -> Int64:
    if trace.tenants is None:
        if len(models.models) == 1:
            return np.zeros(len(trace), np.int64)
        raise InvalidArgumentError(f"{path} has no column hplm, and this home has {len(models.models)} roots")
    unknown = [name for name in trace.tenant_names if name not in models.number_of]
    if unknown:
        named = ", ".join(shown(name) for name in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
        raise NotFoundError(f"{path} has requests for {named}{more}, which are no hPLMs and no roots of this home")
    return np.array([models.number_of[name] for name in trace.tenant_names], np.int64)[trace.tenants]


def _patience_us(
    trace: Trace, path: Path, models: Sequence[Model], numbers: Int64, deadlines: str | None, seed: int
) -> Int64:
    spec = None if deadlines is None else parse_deadlines(deadlines)
    if spec is None:
        if trace.deadlines_ms is None:
            raise InvalidArgumentError(
                f"{path} has no column deadline_ms; say --deadlines 200ms, or 5x-20x for multiples of a full batch"
            )
        own_ms = np.where(np.isfinite(trace.deadlines_ms), trace.deadlines_ms, LONGEST_DEADLINE_MS)
        return (1_000 * own_ms).astype(np.int64)
    rng = np.random.default_rng(seed)
    patience_us = np.zeros(len(trace), np.int64)
    for number, model in enumerate(models):
        own = numbers == number
        drawn_ms = spec.after(model.full_batch_us / 1e3).draw_ms(int(own.sum()), rng)
        patience_us[own] = 1_000 * drawn_ms
    return patience_us
