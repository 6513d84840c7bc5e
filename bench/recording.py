"""What does it cost a request that its traffic is recorded?

`note_us` is what noting a request of one row takes on the thread that serves it, `recording_us` that and the writer's
part, both of processor time. `request_us` is what `hplm_lower` takes for such a request of the tiny home, in batches of
`batch`, and `with_over_without` what it takes with a recorder over without, in turns; it is of all threads. `buffer_mb`
is the memory of a full buffer, `bytes_per_request` the disk space of a request.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from backends.clock import now_us
from backends.home import Home
from backends.lower.service import AcceptedRequest, HiddenRequest, LowerService, TextRequest
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.traffic.recorder import MOST_NOTES, Asked, TrafficRecorder
from backends.traffic.records import ACCEPTED
from backends.traffic.settings import TrafficSettings
from bench.kit.entry import Result, at_most, bench
from bench.kit.scratch_home import add_home_option, scratch_home
from bench.kit.tiny_home import sample_texts

_RECORDED = TrafficSettings(record=True)
_NEVER_S = 3600.0


@dataclass(frozen=True)
class Settings:
    turns: int
    requests: int
    notes: int
    batch: int = 16


FULL = Settings(turns=15, requests=8_000, notes=200_000)
QUICK = Settings(turns=5, requests=2_000, notes=50_000)


@dataclass(frozen=True)
class Turn:
    """Processor time of a request in microseconds, without and with a recorder."""

    without_us: float
    with_us: float


def serving_us(service: LowerService, requests: Sequence[TextRequest], batch: int) -> float:
    """Return the processor time of all threads for a request."""
    began = time.process_time()
    for start in range(0, len(requests), batch):
        service.times.begin(now_us())
        accepted = [service.accept(request) for request in requests[start : start + batch]]
        answered = service.encode_accepted([one for one in accepted if isinstance(one, AcceptedRequest)])
        service.times.end(now_us())
        if not all(isinstance(one, HiddenRequest) for one in answered) or len(answered) < len(accepted):
            raise RuntimeError("a request was not served")
    return 1e6 * (time.process_time() - began) / len(requests)


@dataclass(frozen=True)
class Noting:
    """Processor time of a request in microseconds: of the thread that notes it, and of that and the writer together."""

    note_us: float
    recording_us: float


def noting(folder: Path, entry: HplmEntry, notes: int) -> Noting:
    """Measure without any serving beside it, half a buffer at a time."""
    recorder = TrafficRecorder(folder, "bench", _RECORDED)
    try:
        at_once, asked = MOST_NOTES // 2, Asked(now_us(), [entry], [20])
        turns = -(-notes // at_once)
        noting_s, began_s = 0.0, time.process_time()
        for _ in range(turns):
            began = time.thread_time()
            for _ in range(at_once):
                recorder.note(asked, ACCEPTED, [20])
            noting_s += time.thread_time() - began
            while recorder.num_waiting:
                time.sleep(0.05)
        return Noting(1e6 * noting_s / turns / at_once, 1e6 * (time.process_time() - began_s) / turns / at_once)
    finally:
        recorder.close()


def buffer_mb(folder: Path, entry: HplmEntry) -> float:
    """Return the memory of a full buffer, of which the writer has taken nothing."""
    recorder = TrafficRecorder(folder, "bench", _RECORDED, write_every_s=_NEVER_S)
    while not folder.exists():
        time.sleep(0.01)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(MOST_NOTES + 1000):
            recorder.note(Asked(10**12 + number, [entry], [300 + number], 10**6 + number), ACCEPTED, [400 + number])
        return (tracemalloc.get_traced_memory()[0] - before) / 1e6
    finally:
        tracemalloc.stop()
        recorder.close()


def _turns(home: Home, snapshot: RegistrySnapshot, settings: Settings, seed: int) -> tuple[list[Turn], float]:
    """Measure in turns; returns also the bytes of a recorded request."""
    rng = random.Random(seed)
    hplms = [entry.id.encode() for entry in snapshot.live() if not entry.pair]
    texts = [sample.text.encode() for sample in sample_texts(500, seed)]
    requests = [
        TextRequest([rng.choice(hplms)], [rng.choice(texts)], '{"deadline_ms": 60000}')
        for _ in range(settings.requests)
    ]
    recorder = TrafficRecorder(home.traffic, "bench", _RECORDED)
    plain, recording = LowerService(home, snapshot), LowerService(home, snapshot, traffic=recorder)
    try:
        for service in (plain, recording):  # fragments that no table holds are computed, once
            serving_us(service, requests, settings.batch)
        turns = []
        for number in range(settings.turns):
            order = (plain, recording) if number % 2 else (recording, plain)
            taken = {service: serving_us(service, requests, settings.batch) for service in order}
            turns.append(Turn(taken[plain], taken[recording]))
    finally:
        plain.close()
        recording.close()
    size_bytes = sum(path.stat().st_size for path in home.traffic.iterdir())
    return turns, size_bytes / recorder.num_recorded


@bench("recording", bars={"recording_us": at_most(10), "buffer_mb": at_most(16)}, add_options=add_home_option)
def recording(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with scratch_home(options.home) as home:
        snapshot = RegistrySnapshot.open(home)
        try:
            entry = snapshot.live()[0]
            turns, request_bytes = _turns(home, snapshot, settings, options.seed)
            figures = {
                **asdict(noting(home.path / "noted", entry, settings.notes)),
                "request_us": median(turn.without_us for turn in turns),
                "with_over_without": median(turn.with_us / turn.without_us for turn in turns),
                "buffer_mb": buffer_mb(home.path / "kept", entry),
                "bytes_per_request": request_bytes,
            }
        finally:
            snapshot.close()
    return Result(asdict(settings), figures, [asdict(turn) for turn in turns])


if __name__ == "__main__":
    recording.main()
