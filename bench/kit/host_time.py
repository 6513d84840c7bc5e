"""The host's time for a row: all that the upper model's process does for it but compute it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from backends.trace import Lane
from bench.kit.report import machine
from builder.cpu_flags import FAST_BF16, cpu_flags
from builder.serving import TracedSpan

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "host_time.toml"
_SPANS = {
    (Lane.QUEUE, "read"),
    (Lane.QUEUE, "accept"),
    (Lane.STAGING, "choose"),
    (Lane.STAGING, "stage"),
    (Lane.ANSWERING, "answer"),
    (Lane.ANSWERING, "send"),
}


def host_us_per_row(spans: Iterable[TracedSpan], num_rows: int) -> float:
    """Processor time of the threads that accept, stage, answer and send rows, in microseconds a row."""
    return sum(span.cpu_us for span in spans if (span.lane, span.name) in _SPANS) / num_rows


def processor() -> str:
    """Return the processor's name with its fast bf16 instructions, since a virtual one may have a name of few words."""
    return ", ".join([str(machine()["cpu"]), *sorted(FAST_BF16 & cpu_flags())])


def quotient_before(name: str, committed: Path = COMMITTED) -> float | None:
    """Return the committed quotient of a processor; None for one that was not met."""
    quotients: dict[str, float] = tomllib.loads(committed.read_text(encoding="utf-8"))["quotients"]
    return quotients.get(name)
