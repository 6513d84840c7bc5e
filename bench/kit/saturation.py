"""Clients that keep a server full: how many rows a second come back, how long each took, and what the asking costs.

One request carries one row; as many are under way as are told, and the next one is sent when an answer comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc.aio as triton

from hplm_client.codec import Call, inputs_of

Row = tuple[str, str]
"""hPLM and text."""


@dataclass(frozen=True)
class Taken:
    """What one run of rows took; `edge_rows` at either end, while the server fills and drains, count for nothing."""

    answered_s: list[float]
    latencies_s: list[float]
    client_cpu_s: float
    wall_s: float
    edge_rows: int

    @property
    def rows_per_s(self) -> float:
        """Between the last answer of the beginning and the last one before the end: whole batches, if they are full."""
        times, edge = sorted(self.answered_s), self.edge_rows
        return (len(times) - 2 * edge) / (times[-edge - 1] - times[edge - 1])

    @property
    def client_cores(self) -> float:
        """How many cores the asking itself kept busy."""
        return self.client_cpu_s / self.wall_s

    def percentile_ms(self, percent: float) -> float:
        return 1000 * float(np.percentile(self.latencies_s, percent))


def saturate(url: str, rows: Sequence[Row], in_flight: int, edge_rows: int = 64, model: str = "hplm") -> Taken:
    """Ask all rows of a model that speaks the ensemble's wire contract."""
    return asyncio.run(_saturate(url, rows, in_flight, edge_rows, model))


async def _saturate(url: str, rows: Sequence[Row], in_flight: int, edge_rows: int, model: str) -> Taken:
    client = triton.InferenceServerClient(url)
    waiting = iter(rows)
    answered_s: list[float] = []
    latencies_s: list[float] = []

    async def ask() -> None:
        for hplm, text in waiting:
            sent_s = time.perf_counter()
            await client.infer(model, inputs_of(Call(hplm, (text.encode(),), {}), triton.InferInput))
            answered_s.append(time.perf_counter())
            latencies_s.append(answered_s[-1] - sent_s)

    cpu_s, wall_s = time.process_time(), time.perf_counter()
    try:
        await asyncio.gather(*(ask() for _ in range(min(in_flight, len(rows)))))
    finally:
        await client.close()
    taken_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return Taken(answered_s, latencies_s, *taken_s, edge_rows)


def draw(hplms: Sequence[str], texts: Sequence[str], count: int, rng: np.random.Generator) -> list[Row]:
    """Rows of hPLMs and texts drawn uniformly."""
    return [
        (hplms[hplm], texts[text])
        for hplm, text in zip(rng.integers(len(hplms), size=count), rng.integers(len(texts), size=count), strict=True)
    ]
