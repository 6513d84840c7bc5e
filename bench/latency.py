"""Where does the time of a request go, one row at a time and 64 at once?

Real Triton, traced: each stage of both processes says how long it took and how much of that its own thread computed.
At batch 1 one client waits for each answer before it asks again, so the stages of a row lie end to end and what they
do not explain is Triton, gRPC, the ways between the processes and the client. At batch 64 twice as many are under way,
and the host's time for a row is compared with that at an earlier commit, each in reference jobs.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backends.trace import TRACE_VARIABLE, Lane
from bench.kit.entry import Result, at_most, bench
from bench.kit.host_time import host_us_per_row, processor, quotient_before
from bench.kit.reference_job import ReferenceClock
from bench.kit.saturation import HplmText, draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, TenantHome, tenant_home
from builder.serving import TracedSpan, read_spans
from loadtest.in_process import Played

_FLUSH_S = 1.0
_LENGTHS = (20, 128)
_ORDER = (
    (Lane.RETRIEVAL, "read"),
    (Lane.RETRIEVAL, "check"),
    (Lane.RETRIEVAL, "tokenise"),
    (Lane.RETRIEVAL, "look up"),
    (Lane.RETRIEVAL, "aggregate"),
    (Lane.RETRIEVAL, "fold"),
    (Lane.RETRIEVAL, "respond"),
    (Lane.QUEUE, "read"),
    (Lane.QUEUE, "accept"),
    (Lane.LOADING, "load"),
    (Lane.STAGING, "choose"),
    (Lane.STAGING, "stage"),
    (Lane.COMPUTE, "run"),
    (Lane.ANSWERING, "answer"),
    (Lane.ANSWERING, "send"),
)
_INSIDE = {(Lane.LOADING, "load")}
"""Parts of the stage after them, shown but not added up."""


@dataclass(frozen=True)
class Settings:
    alone_rows: int
    full_rows: int
    tenants: int = 16
    texts: int = 64
    dtype: str = "bf16"
    geometry: str = "BERT-base, 6 of 12 x 768 above PLOT"


FULL = Settings(alone_rows=1_000, full_rows=2_048)
QUICK = Settings(alone_rows=60, full_rows=192)


@dataclass(frozen=True)
class Phase:
    """One length at one number of rows under way."""

    length: int
    batch: int
    taken: Played
    spans: list[TracedSpan]
    reference_us: float | None
    """Time of the reference job meanwhile; with one row at a time it would only delay the client."""

    def stage(self, lane: Lane, name: str) -> list[TracedSpan]:
        return [span for span in self.spans if (span.lane, span.name) == (lane, name)]


def run_phase(url: str, rows: Sequence[HplmText], batch: int) -> tuple[Played, float | None, tuple[float, float]]:
    """What the clients saw, the time of the reference job, and from when to when on the clock of the spans, in µs."""
    start_us = time.monotonic_ns() / 1e3
    with nullcontext() if batch == 1 else ReferenceClock() as reference:
        taken = saturate(url, rows, in_flight=1 if batch == 1 else 2 * batch)
    reference_us = None if reference is None else reference.mean_us
    return taken, reference_us, (start_us, time.monotonic_ns() / 1e3)


def measure(base: TenantHome, settings: Settings, seed: int) -> list[Phase]:
    rng = np.random.default_rng(seed)
    home, hplms, texts = base.home, base.hplms, base.texts
    trace = home.path / "trace"
    windows = []
    with served(home, Serving(upper={"dtype": settings.dtype}, environment={TRACE_VARIABLE: str(trace)})) as server:
        for length in _LENGTHS:
            saturate(server.grpc_url, draw(hplms, texts[length], 64, rng), in_flight=64)
            for batch, count in ((1, settings.alone_rows), (64, settings.full_rows)):
                rows = draw(hplms, texts[length], count, rng)
                windows.append((length, batch, *run_phase(server.grpc_url, rows, batch)))
        time.sleep(_FLUSH_S)
    spans = read_spans(trace)
    return [
        Phase(length, batch, taken, [span for span in spans if start <= span.start_us < end], reference_us)
        for length, batch, taken, reference_us, (start, end) in windows
    ]


def stage_rows(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    return [row for phase in phases for row in _rows_of(phase)]


def _rows_of(phase: Phase) -> list[dict[str, Any]]:
    num_rows = len(phase.taken.requests)
    rows: list[dict[str, Any]] = []
    explained_us = 0.0
    for lane, name in _ORDER:
        found = phase.stage(lane, name)
        if not found:
            continue
        durations = [span.duration_us for span in found]
        if (lane, name) not in _INSIDE:
            explained_us += float(np.percentile(durations, 50))
        rows.append(
            {
                "tokens": phase.length,
                "batch": phase.batch,
                "stage": f"{lane}: {name}",
                "p50 us": float(np.percentile(durations, 50)),
                "p99 us": float(np.percentile(durations, 99)),
                "us per row": sum(durations) / num_rows,
                "own CPU us per row": sum(span.cpu_us for span in found) / num_rows,
            }
        )
    total = {"tokens": phase.length, "batch": phase.batch, "stage": "as the client sees it"}
    total |= {f"p{percent} us": 1e3 * phase.taken.latency_ms(percent) for percent in (50, 99)}
    if phase.batch == 1:
        between = {"tokens": phase.length, "batch": 1, "stage": "Triton, gRPC, client and the ways between"}
        rows.append({**between, "p50 us": 1e3 * phase.taken.latency_ms(50) - explained_us})
    return [*rows, {**total, "us per row": 1e6 * phase.taken.effort.wall_s / num_rows}]


def figures(phases: Sequence[Phase]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for phase in phases:
        suffix = "" if phase.length == max(_LENGTHS) else "_short"
        if phase.batch == 1:
            found[f"p50_ms{suffix}"] = phase.taken.latency_ms(50)
            found[f"p99_ms{suffix}"] = phase.taken.latency_ms(99)
            computed = float(np.percentile([span.duration_us for span in phase.stage(Lane.COMPUTE, "run")], 50))
            found[f"compute_share{suffix}"] = computed / 1e3 / phase.taken.latency_ms(50)
        else:
            python = [span for span in phase.spans if span.lane in (Lane.QUEUE, Lane.ANSWERING)]
            found[f"job_cpu_us{suffix}"] = sum(span.cpu_us for span in python) / len(phase.taken.requests)
    return dict(found) | _host_figures(phases)


def _host_figures(phases: Sequence[Phase]) -> dict[str, float]:
    """Compare the quotient with the committed one, on processors that have one."""
    quotients = [
        host_us_per_row(phase.spans, len(phase.taken.requests)) / phase.reference_us
        for phase in phases
        if phase.reference_us is not None
    ]
    found = {"host_us_per_row_quotient": (quotient := float(np.mean(quotients)))}
    before = quotient_before(processor())
    return found if before is None else {**found, "host_us_per_row_ratio": quotient / before}


@bench("latency", bars={"host_us_per_row_ratio": at_most(0.5)})
def latency(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with tenant_home(BERT_BASE, settings.tenants, _LENGTHS, options.seed, settings.texts) as home:
        phases = measure(home, settings, options.seed)
    return Result(asdict(settings), figures(phases), stage_rows(phases))


if __name__ == "__main__":
    latency.main()
