"""What a recorded traffic asks of each stack: which one a request goes to, how long its text is, how deep it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError, NotFoundError, shown
from backends.registry.entries import HplmEntry
from backends.stack_key import FULL
from backends.wire import AUTO
from builder.placement.planner.group import level_name
from builder.placement.planner.traffic import Int64
from workload.traces import Trace

_NAMED = 3
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """What requests for a stack are like, in the mean.

    Attributes:
        likely_depth: The share of the upper layers that a row passes where there is time.
        least_depth: The share that it passes at least, as in full batches.
    """

    tokens: float
    likely_depth: float = 1.0
    least_depth: float = 1.0


@dataclass(frozen=True, eq=False)
class AskedStacks:
    """The stacks of a traffic's requests, by name.

    Shape:
        of_requests: `[requests]`, places in `names`.
        likely_depths, least_depths: `[requests]`.
    """

    names: tuple[str, ...]
    of_requests: Int64
    likely_depths: Float64
    least_depths: Float64

    @classmethod
    def of(cls, trace: Trace, path: Path, hplms: Mapping[str, HplmEntry], roots: Sequence[str]) -> AskedStacks:
        """Find out where the requests of a trace go, which `path` names in messages.

        Raises:
            NotFoundError: They are for hPLMs that are not there.
            InvalidArgumentError: They name levels that their hPLMs do not have, or no hPLMs where there are two roots.
        """
        if trace.tenants is None:
            if len(roots) != 1:
                raise InvalidArgumentError(f"{path} has no column hplm, and this home has {len(roots)} roots")
            return cls((roots[0],), np.zeros(len(trace), np.int64), np.ones(len(trace)), np.ones(len(trace)))
        _require_known(trace.tenant_names, path, {*hplms, *roots})
        num_levels = max(1, len(trace.level_names))
        levels = trace.levels if trace.levels is not None else np.zeros(len(trace), np.int64)
        pairs, of_requests = np.unique(trace.tenants * num_levels + levels, return_inverse=True)
        names: dict[str, int] = {}
        found: list[tuple[int, float, float]] = []
        for tenant, level in zip(*(each.tolist() for each in np.divmod(pairs, num_levels)), strict=True):
            named = trace.level_names[level] if trace.level_names else ""
            hplm = trace.tenant_names[tenant]
            name, likely, least = _stack(hplms.get(hplm), hplm, named or AUTO)
            found.append((names.setdefault(name, len(names)), likely, least))
        of_pairs = np.array(found)[of_requests]
        return cls(tuple(names), of_pairs[:, 0].astype(np.int64), of_pairs[:, 1], of_pairs[:, 2])

    def means(self, tokens: Int64 | None, default: float, roots: Sequence[str]) -> dict[str, Asked]:
        """Return what requests for each stack are like; those for roots that nobody asks have the default length."""
        found = {root: Asked(default) for root in roots}
        for place, name in enumerate(self.names):
            own = self.of_requests == place
            length = default if tokens is None else float(tokens[own].mean())
            found[name] = Asked(length, float(self.likely_depths[own].mean()), float(self.least_depths[own].mean()))
        return found


def _require_known(names: Sequence[str], path: Path, known: set[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        named = ", ".join(shown(name) for name in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
        raise NotFoundError(f"{path} has requests for {named}{more}, which are no hPLMs and no roots of this home")


def _stack(entry: HplmEntry | None, name: str, level: str) -> tuple[str, float, float]:
    """Return the stack on which a request begins, and how deep it goes: likely, and at least. None is a root."""
    if entry is None:
        if level not in (AUTO, FULL):
            raise InvalidArgumentError(f"requests for root {shown(name)} have no level {shown(level)}")
        return name, 1.0, 1.0
    if level != AUTO:
        entry.require_level(level)
    key = entry.stack(level)
    # A row settles for less only where it would be late: the planner's load is one that is answered.
    least = entry.least_depth(level) if key.level != FULL else entry.likely_depth(level)
    return level_name(key.root, key.level), entry.most_depth(level), least
