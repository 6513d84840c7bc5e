"""One Chrome trace out of what the processes of a server have written, and how much of it ran side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from backends.storage import write_file
from backends.trace import Lane

_HIDDEN_LANES = (Lane.RETRIEVAL, Lane.LOADING, Lane.STAGING, Lane.ANSWERING)
Interval = tuple[float, float]


@dataclass(frozen=True)
class TracedSpan:
    """One thing that was done; times in microseconds on the machine's monotonic clock, `cpu_us` of its own thread."""

    lane: Lane
    name: str
    process: str
    pid: int
    start_us: float
    duration_us: float
    cpu_us: float
    arguments: Mapping[str, int]

    @property
    def interval(self) -> Interval:
        return self.start_us, self.start_us + self.duration_us


def read_spans(folder: Path) -> list[TracedSpan]:
    """All spans in the order in which they began; a line that a killed process left unfinished is skipped."""
    lines = chain.from_iterable(path.read_text(encoding="utf-8").splitlines() for path in folder.glob("*.jsonl"))
    return sorted(_spans(lines), key=lambda span: span.start_us)


def write_trace(path: Path, spans: Sequence[TracedSpan]) -> None:
    """Write a trace for chrome://tracing and Perfetto: one row per lane of each process."""
    lanes = list(Lane)
    named = {(span.pid, span.process) for span in spans}
    seen = {(span.pid, span.lane) for span in spans}
    metadata = [_metadata("process_name", pid, 0, name) for pid, name in sorted(named)]
    metadata += [_metadata("thread_name", pid, lanes.index(lane), lane) for pid, lane in sorted(seen)]
    events = [
        {
            "ph": "X",
            "cat": span.lane,
            "name": span.name,
            "pid": span.pid,
            "tid": lanes.index(span.lane),
            "ts": span.start_us,
            "dur": span.duration_us,
            "tdur": span.cpu_us,
            "args": dict(span.arguments),
        }
        for span in spans
    ]
    write_file(path, json.dumps({"traceEvents": [*metadata, *events], "displayTimeUnit": "ms"}).encode())


def overlaps(spans: Sequence[TracedSpan]) -> dict[Lane, float]:
    """Compute the share of each lane's time that passed while something was computed."""
    computing = _union([span.interval for span in spans if span.lane is Lane.COMPUTE])
    shares = {}
    for lane in _HIDDEN_LANES:
        busy = _union([span.interval for span in spans if span.lane is lane])
        total = sum(end - start for start, end in busy)
        if total:
            shares[lane] = _common(busy, computing) / total
    return shares


def overlap_line(spans: Sequence[TracedSpan]) -> str:
    shares = ", ".join(f"{share:.0%} of {lane}" for lane, share in overlaps(spans).items())
    return f"hidden behind compute: {shares}" if shares else "nothing was traced"


def _spans(lines: Iterator[str]) -> Iterator[TracedSpan]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        yield TracedSpan(
            Lane(event["cat"]),
            event["name"],
            event["process"],
            event["pid"],
            event["ts"],
            event["dur"],
            event["tdur"],
            event["args"],
        )


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _union(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time, in intervals that lie apart and in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _common(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Compute how long two unions overlap."""
    total, index = 0.0, 0
    for start, end in one:
        while index < len(other) and other[index][1] <= start:
            index += 1
        for left, right in other[index:]:
            if left >= end:
                break
            total += min(end, right) - max(start, left)
    return total
