"""What a recorded traffic asks of a home, without PyTorch: what is wrong with it is known before long imports.

Usage:
    asked = read_asked(registry, Recorded(path))
    fleet = recorded_fleet(home, registry, asked, devices, seed)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.errors import InvalidArgumentError, NotFoundError
from backends.registry.registry import Registry
from builder.placement.planner.asked_stacks import AskedStacks
from workload.checks import check_positive
from workload.spec import DeadlineSpec, parse_deadlines
from workload.traces import Trace, read_trace


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


@dataclass(frozen=True, eq=False)
class AskedTraffic:
    """A recorded traffic that was read, for the roots of a home.

    Attributes:
        deadlines: Those that take the place of the trace's; None for its own, of which there are some.
    """

    recorded: Recorded
    trace: Trace
    stacks: AskedStacks
    roots: tuple[str, ...]
    deadlines: DeadlineSpec | None


def read_asked(registry: Registry, recorded: Recorded) -> AskedTraffic:
    """Read a traffic, and check it against the hPLMs of a home.

    Raises:
        NotFoundError: The home has no roots, or requests are for hPLMs that are not there.
        InvalidArgumentError: Nothing says by when requests are to be answered, or as `AskedStacks.of`.
        WorkloadError: The file or what was said of it cannot be used.
    """
    check_positive(speed=recorded.speed, tokens=recorded.tokens)
    deadlines = None if recorded.deadlines is None else parse_deadlines(recorded.deadlines)
    trace = read_trace(recorded.path)
    roots = [entry.name for entry in registry.roots()]
    if not roots:
        raise NotFoundError("this home has no root yet; 'hplm root add' makes one")
    stacks = AskedStacks.of(trace, recorded.path, {entry.id: entry for entry in registry.hplms()}, roots)
    if deadlines is None and trace.deadlines_ms is None:
        raise InvalidArgumentError(
            f"no request of {recorded.path} has a deadline; say --deadlines 200ms, or 5x-20x for multiples of a full "
            "batch"
        )
    return AskedTraffic(recorded, trace, stacks, tuple(roots), deadlines)
