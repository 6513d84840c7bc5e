"""Does a server bend under more load than it can answer, or does it break?

Real Triton; its own gRPC client in a process of its own, on the same cores. What an engine kept full would answer in
the share of the cores that neither the clients nor Triton itself used is what is left of the capacity. Loads: a burst,
callers who ask again at once, short deadlines in an open loop, and a flood of rows without deadlines.

Beside it, burst and callers meet a server whose first model rejects everything with no work at all. It says what is
possible: how soon any rejection can be told, and which part of what is left remains for the engine once a process of
Python has heard of each request.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import torch

from backends.engine.precision import fast_float_dtype
from backends.root.geometry import RootGeometry
from bench.kit.cpu_shares import CpuMeter
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.footprint import Footprint
from bench.kit.idle import wait_until_idle
from bench.kit.served import Serving, served
from bench.kit.stock_client import ClientProcess, Replies, Sending, ask_again_at_once, send_on_time
from bench.kit.synthetic_home import BERT_BASE, MINILM, TenantHome, tenant_home
from builder.export.settings import ExportSettings
from builder.serving import TritonServer
from builder.settings.hplm import LORA_EVERYWHERE
from hplm_client import ClientError, HplmClient
from workload.arrivals import PoissonArrivals

_LENGTHS = range(8, 41, 4)
_MODELS: Mapping[str, RootGeometry] = {"demo": MINILM, "bert_base": BERT_BASE}
_DEMO = "demo"
_REJECTING = Path(__file__).parent / "triton_models" / "rejecting" / "1" / "model.py"


@dataclass(frozen=True)
class Settings:
    burst_requests: int = 3000
    burst_deadline_ms: int = 1000
    callers: int = 100
    storm_deadline_ms: int = 300
    storm_s: float = 8.0
    full_s: float = 6.0
    full_in_flight: int = 192
    short_deadlines_ms: tuple[int, int] = (100, 500)
    short_loads: tuple[float, ...] = (0.6, 0.8, 1.0, 1.5, 2.0)
    short_s: float = 10.0
    flood_rows: int = 100_000
    flood_rows_per_request: int = 64
    flood_s: float = 10.0
    rest_s: float = 5.0
    repeats: int = 3
    tenants: int = 16
    texts: int = 64
    dtype: str = fast_float_dtype(torch.device("cpu"))


FULL = Settings()
QUICK = replace(FULL, storm_s=4.0, full_s=3.0, short_loads=(0.6, 1.0, 2.0), short_s=5.0, repeats=1)


@dataclass(frozen=True, eq=False)
class Load:
    """A load that was played."""

    replies: Replies
    cores_left: float
    """Share of the cores that neither clients nor Triton itself used in the measured time."""
    models_share: float
    """Share of the cores that the models' processes used in the measured time."""
    answered: int
    """In time, within the measured time."""
    measured_s: float

    def goodput(self, engine_rows_per_s: float) -> float:
        """Answers in time over what an engine kept full would have answered with the cores that were left."""
        return self.answered / (engine_rows_per_s * self.cores_left * self.measured_s)

    def row(self) -> dict[str, Any]:
        replies = self.replies
        total = len(replies.status) + replies.unanswered
        rejection_ms = replies.rejection_ms()
        return {
            "requests": total,
            "in time": int(replies.in_time.sum()),
            "late": int((replies.status == "").sum() - replies.in_time.sum()),
            "rejected": int(replies.rejected.sum()),
            "failed": total - int((replies.status == "").sum()) - int(replies.rejected.sum()),
            "in time per s": self.answered / self.measured_s,
            "cores left": self.cores_left,
            "rejection p50 ms": _percentile(rejection_ms, 50),
            "rejection p99 ms": _percentile(rejection_ms, 99),
        }

    @property
    def remaining(self) -> float:
        """Part of what was left that the models' processes did not use."""
        return 1.0 - self.models_share / self.cores_left


def _percentile(values: np.ndarray[Any, Any], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


class Loads:
    """The loads of one server."""

    def __init__(self, server: TritonServer, home: TenantHome, settings: Settings, seed: int) -> None:
        self._server, self._home, self._settings = server, home, settings
        self._rng = np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []

    def warm(self) -> None:
        self.warm_up_triton()
        self._full(2.0)

    def warm_up_triton(self) -> None:
        self._play(send_on_time, self._sendings([0.002 * at for at in range(600)]))

    def measure_full(self) -> tuple[float, float]:
        """Rows per second that come back, and what the same engine would answer with all cores."""
        load = self._full(self._settings.full_s)
        rows_per_s = load.answered / load.measured_s
        self._note("kept full", load)
        return rows_per_s, rows_per_s / load.cores_left

    def _full(self, duration_s: float) -> Load:
        sendings = self._sendings([0.0] * 2048)
        return self._play(
            ask_again_at_once, sendings, self._settings.full_in_flight, duration_s, measured=(1.0, duration_s)
        )

    def burst(self) -> Load:
        settings = self._settings
        sendings = self._sendings([0.0] * settings.burst_requests, [settings.burst_deadline_ms])
        load = self._play(send_on_time, sendings, measured=(0.0, settings.burst_deadline_ms / 1e3))
        return self._note("burst", load)

    def storm(self) -> Load:
        settings = self._settings
        sendings = self._sendings([0.0] * 2048, [settings.storm_deadline_ms])
        measured = (1.0, settings.storm_s)
        load = self._play(ask_again_at_once, sendings, settings.callers, settings.storm_s, measured=measured)
        return self._note("asking again at once", load)

    def short(self, load: float, capacity_per_s: float) -> Load:
        settings = self._settings
        times_s = PoissonArrivals(load * capacity_per_s).times_s(settings.short_s, self._rng).tolist()
        shortest, longest = settings.short_deadlines_ms
        deadlines_ms = self._rng.integers(shortest, longest + 1, size=len(times_s)).tolist()
        played = self._play(send_on_time, self._sendings(times_s, deadlines_ms), measured=(0.5, settings.short_s))
        return self._note(f"short deadlines, {load:g} x", played)

    def flood(self) -> tuple[Load, float]:
        """The load, and by how many bytes the server's processes have grown at most."""
        settings = self._settings
        count = settings.flood_rows // settings.flood_rows_per_request
        times_s = np.linspace(0.0, settings.flood_s, count).tolist()
        sendings = [
            replace(one, texts=tuple(self._text() for _ in range(settings.flood_rows_per_request)))
            for one in self._sendings(times_s)
        ]
        before = Footprint.of(self._server.pid).rss_bytes
        most = 0

        def watch() -> None:
            nonlocal most
            most = max(most, Footprint.of(self._server.pid).rss_bytes - before)

        load = self._play(send_on_time, sendings, measured=(0.0, settings.flood_s), meanwhile=watch)
        return self._note("flood", load), most

    def answers_after_rest(self) -> float:
        """The share of single rows that are answered within a second, a few seconds after the last load."""
        time.sleep(self._settings.rest_s)
        load = self._play(send_on_time, self._sendings([0.02 * at for at in range(100)], [1000]))
        return float(self._note("after the flood", load).replies.in_time.mean())

    def _text(self) -> str:
        texts = self._home.texts[int(self._rng.choice(list(self._home.texts)))]
        return texts[int(self._rng.integers(len(texts)))]

    def _sendings(self, times_s: Sequence[float], deadlines_ms: Sequence[int | None] = (None,)) -> list[Sending]:
        hplms = self._home.hplms
        return [
            Sending(
                at_s,
                hplms[int(self._rng.integers(len(hplms)))],
                (self._text(),),
                deadlines_ms[number % len(deadlines_ms)],
            )
            for number, at_s in enumerate(times_s)
        ]

    def _note(self, name: str, load: Load) -> Load:
        self.rows.append({"load": name, **load.row()})
        return load

    def _play(
        self,
        play: Callable[..., Replies],
        *arguments: Any,
        measured: tuple[float, float] = (0.0, 1.0),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Load:
        begin_s, end_s = measured
        with ClientProcess(play, self._server.grpc_url, *arguments) as client:
            meter = CpuMeter(self._server, [client.pid])
            began_at = client.start()
            _sleep_until(began_at + begin_s)
            before = meter.read()
            while time.monotonic() < began_at + end_s - 0.5:
                meanwhile()
                time.sleep(0.2)
            _sleep_until(began_at + end_s)
            after = meter.read()
            meanwhile()
            replies = client.replies()
        wait_until_idle(self._server)
        return Load(
            replies,
            meter.left(before, after),
            meter.of_models(before, after),
            replies.goodput(begin_s, end_s),
            end_s - begin_s,
        )


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


@contextmanager
def opened(
    geometry: RootGeometry, settings: Settings, seed: int, prepare: Callable[[Path], None] = lambda _: None
) -> Iterator[tuple[TritonServer, TenantHome]]:
    serving = Serving(lower_instances=ExportSettings.lower_instances, upper={"dtype": settings.dtype}, prepare=prepare)
    with (
        tenant_home(geometry, settings.tenants, _LENGTHS, seed, settings.texts, LORA_EVERYWHERE) as home,
        served(home.home, serving) as server,
    ):
        yield server, home


def _reject_everything(repository: Path) -> None:
    copyfile(_REJECTING, repository / "hplm_lower" / "1" / "model.py")


def measure_rejecting(settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The figures of a server that rejects everything with no work."""
    with opened(_MODELS[_DEMO], settings, seed, _reject_everything) as (server, home):
        loads = Loads(server, home, settings, seed)
        loads.warm_up_triton()
        bursts, storms = [], []
        for _ in range(settings.repeats):
            bursts.append(loads.burst())
            storms.append(loads.storm())
    rejection_ms = np.concatenate([load.replies.rejection_ms() for load in (*bursts, *storms)])
    figures = {
        "rejection_floor_p99_ms": float(np.percentile(rejection_ms, 99)),
        "burst_goodput_ceiling": float(np.median([load.remaining for load in bursts])),
        "retry_storm_goodput_ceiling": float(np.median([load.remaining for load in storms])),
        "burst_sent_s": float(np.median([load.replies.sent_s.max() for load in bursts])),
    }
    return figures, [{"model": "rejects everything", **row} for row in loads.rows]


def measure(model: str, settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    mark = "" if model == _DEMO else f"_{model}"
    with opened(_MODELS[model], settings, seed) as (server, home):
        loads = Loads(server, home, settings, seed)
        loads.warm()
        found: dict[str, list[float]] = {}
        rejection_ms: list[float] = []
        for _ in range(settings.repeats):
            capacity, engine = loads.measure_full()
            burst, storm = loads.burst(), loads.storm()
            values = {
                "burst_goodput": burst.goodput(engine),
                "retry_storm_goodput": storm.goodput(engine),
                "capacity_rows_per_s": capacity,
            }
            for name, value in values.items():
                found.setdefault(f"{name}{mark}", []).append(value)
            rejection_ms += [*burst.replies.rejection_ms(), *storm.replies.rejection_ms()]
        figures = {name: float(np.median(values)) for name, values in found.items()}
        figures[f"rejection_p99_ms{mark}"] = float(np.percentile(rejection_ms, 99)) if rejection_ms else 0.0
        if model == _DEMO:
            figures |= short_deadlines(loads, settings, figures["capacity_rows_per_s"])
            figures |= sdk_example(server, home)
            figures |= flood(loads)
    return figures, [{"model": model, **row} for row in loads.rows]


def short_deadlines(loads: Loads, settings: Settings, capacity_per_s: float) -> dict[str, float]:
    """Return medians of several runs of all loads; the last figure is for the cores that were left."""
    found: dict[str, list[float]] = {}
    for _ in range(settings.repeats):
        played = {load: loads.short(load, capacity_per_s) for load in settings.short_loads}
        answered = {load: one.answered / one.measured_s for load, one in played.items()}
        of_left = {load: answered[load] / one.cores_left for load, one in played.items()}
        values = {
            "short_deadlines_0_6": float(played[0.6].replies.in_time.mean()),
            "short_deadlines_plateau": answered[2.0] / max(answered.values()),
            "short_deadlines_plateau_of_left": of_left[2.0] / max(of_left.values()),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.median(values)) for name, values in found.items()}


def flood(loads: Loads) -> dict[str, float]:
    _, growth_bytes = loads.flood()
    return {"flood_rss_mb": growth_bytes / 1e6, "answered_after_flood": loads.answers_after_rest()}


def sdk_example(server: TritonServer, home: TenantHome) -> dict[str, float]:
    """The documented example, on an idle server: 200 texts with 300 ms each."""
    texts = [text for of_length in home.texts.values() for text in of_length][:200]
    with HplmClient(server.grpc_url) as client:
        outcomes = client.infer_many([(home.hplms[0], text) for text in texts], deadline_ms=300, on_error="return")
    return {"sdk_example_answered": sum(not isinstance(one, ClientError) for one in outcomes) / len(outcomes)}


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--models", nargs="+", choices=list(_MODELS), default=list(_MODELS), help="only these")


@bench(
    "overload",
    quick_s=QUICK_LOADS_S,
    bars={
        "burst_goodput": at_least(0.8),
        "retry_storm_goodput": at_least(0.8),
        "rejection_p99_ms": at_most(50),
        "short_deadlines_0_6": at_least(0.95),
        "short_deadlines_plateau": at_least(0.9),
        "flood_rss_mb": at_most(300),
        "sdk_example_answered": at_least(1.0),
        "answered_after_flood": at_least(1.0),
    },
    add_options=add_options,
)
def overload(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for model in options.models:
        of_model, table = measure(model, settings, options.seed)
        figures |= of_model
        rows += table
    of_rejecting, table = measure_rejecting(settings, options.seed)
    figures |= of_rejecting
    rows += table
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    overload.main()
