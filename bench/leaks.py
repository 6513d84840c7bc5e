"""Does anything stay behind of cancelled requests, and of half an hour of mixed load?

A thousand requests are cancelled over gRPC while the engine stands still; rows that the engine has are computed for
nobody. Then callers ask over gRPC and HTTP, with and without deadlines, for hPLMs that are not there, and some lose
patience.
Memory, threads and shared memory are those of all processes of the server, after a time in which they fill.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit.cancellation import Cancellation, Cancelled
from bench.kit.entry import Result, at_most, bench
from bench.kit.footprint import Footprint
from bench.kit.mixed_load import KINDS, MixedLoad
from bench.kit.served import Serving, served
from bench.kit.server_metrics import figure_of
from bench.kit.synthetic_home import SMALL, BaseHome, Family, Words
from bench.kit.turns import Ablation, code_with_turns
from builder.serving import TritonServer

_ROOT = "base"
_MB = 1e6


@dataclass(frozen=True)
class Settings:
    minutes: float
    warm_s: float
    samples: int
    geometry: str = "small, 6 of 12 x 256 above PLOT"
    cancelled: int = 1_000
    callers: int = 32
    tenants: int = 200
    texts: int = 512
    batch_rows: int = 16
    dtype: str = "bf16"


FULL = Settings(minutes=30.0, warm_s=120.0, samples=30)
QUICK = Settings(minutes=0.5, warm_s=5.0, samples=5)


@dataclass(frozen=True)
class Sample:
    """What the server held at a moment of the mixed load, or before it."""

    when: str
    minute: float
    footprint: Footprint

    def row(self) -> dict[str, Any]:
        held = self.footprint
        return {
            "when": self.when,
            "RSS MB": held.rss_bytes / _MB,
            **{f"{name} MB": size_bytes / _MB for name, size_bytes in held.rss_bytes_of.items()},
            "PSS MB": held.pss_bytes / _MB,
            "threads": held.threads,
            "shared files": held.shared_files,
            "shared MB": held.shared_file_bytes / _MB,
        }


@dataclass(frozen=True)
class Results:
    """All that was seen."""

    cancelled: Cancelled
    samples: Sequence[Sample]
    outcomes: Counter[str]
    waiting_rows: float

    def figures(self) -> dict[str, float]:
        before, after = self.samples[0].footprint, self.samples[-1].footprint
        values: dict[str, float] = {
            "hplm_cancelled_still_waiting": self.cancelled.waiting_while_stopped,
            "hplm_batches_after_cancelling": self.cancelled.batches,
            "hplm_cancelled_left_s": self.cancelled.left_s,
        }
        values |= {name: float(count) for name, count in sorted(self.outcomes.items())}
        return values | {
            "requests": float(sum(self.outcomes.values())),
            "waiting_rows_after": self.waiting_rows,
            "rss_mb_before": before.rss_bytes / _MB,
            "rss_mb_after": after.rss_bytes / _MB,
            "rss_mb_per_hour_second_half": self._mb_per_hour(lambda held: held.rss_bytes),
            **{
                f"{name}_mb_per_hour_second_half": self._mb_per_hour(partial(_rss_bytes_of, name=name))
                for name in after.rss_bytes_of
            },
            "threads_more": float(after.threads - before.threads),
            "shared_files_more": float(after.shared_files - before.shared_files),
            "shared_mb_more": (after.shared_file_bytes - before.shared_file_bytes) / _MB,
        }

    def rows(self) -> list[Mapping[str, Any]]:
        return [one.row() for one in self.samples]

    def _mb_per_hour(self, size_bytes: Callable[[Footprint], int]) -> float:
        """The slope of a line through the second half of the load: pools have filled by then."""
        loaded = [one for one in self.samples if one.minute > 0]
        half = loaded[len(loaded) // 2 :]
        minutes = [one.minute for one in half]
        return 60 * float(np.polyfit(minutes, [size_bytes(one.footprint) / _MB for one in half], 1)[0])


def measure(folder: Path, settings: Settings, seed: int) -> Results:
    words, rng = Words(SMALL.vocab_size), np.random.default_rng(seed)
    texts = [words.text(rng, int(length)) for length in rng.integers(3, 101, size=settings.texts)]
    base = BaseHome(folder / "home", seed)
    base.add_root(_ROOT, SMALL, texts)
    hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
    turns = folder / "turns"
    upper = {"dtype": settings.dtype, "max_rows": str(settings.batch_rows)}
    code = code_with_turns(folder / "code", Ablation(upper_turns=turns))
    with served(base.home, Serving(lower_instances=2, upper=upper, code=code)) as server:
        load = MixedLoad(server.grpc_url, server.http_url, hplms, texts, settings.callers, KINDS)
        asyncio.run(load.play(settings.warm_s, seed))
        samples = [Sample("before", 0.0, Footprint.of(server.pid))]
        cancellation = Cancellation(server, turns, hplms, texts[0], settings.batch_rows)
        cancelled = cancellation.cancel(settings.cancelled)
        cancellation.close()
        samples.append(Sample("after cancelling", 0.0, Footprint.of(server.pid)))
        outcomes, during = asyncio.run(_play_and_sample(load, server, settings, seed + 1))
        time.sleep(5.0)  # what waits is answered, and figures are told
        waiting_rows = figure_of(server, "hplm_waiting_rows")
        samples += [*during, Sample("after the load", settings.minutes, Footprint.of(server.pid))]
    return Results(cancelled, samples, outcomes, waiting_rows)


def _rss_bytes_of(held: Footprint, name: str) -> int:
    return held.rss_bytes_of.get(name, 0)  # a process may come or go meanwhile


async def _play_and_sample(
    load: MixedLoad, server: TritonServer, settings: Settings, seed: int
) -> tuple[Counter[str], list[Sample]]:
    playing = asyncio.create_task(load.play(60 * settings.minutes, seed))
    samples = []
    for number in range(1, settings.samples):
        minute = settings.minutes * number / settings.samples
        await asyncio.sleep(60 * settings.minutes / settings.samples)
        footprint = await asyncio.to_thread(Footprint.of, server.pid)
        samples.append(Sample(f"minute {minute:.3g}", minute, footprint))
    return await playing, samples


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--minutes", type=_positive, help="of mixed load; 30, or 0.5 with --quick")


def _positive(text: str) -> float:
    if not (value := float(text)) > 0:
        raise ValueError
    return value


@bench(
    "leaks",
    bars={"waiting_rows_after": at_most(0), "threads_more": at_most(0), "shared_files_more": at_most(0)},
    add_options=add_options,
)
def leaks(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    settings = replace(settings, minutes=options.minutes or settings.minutes)
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        results = measure(Path(folder), settings, options.seed)
    return Result(asdict(settings), results.figures(), results.rows())


if __name__ == "__main__":
    leaks.main()
