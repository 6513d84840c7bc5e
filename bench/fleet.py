"""What do several servers behind a gateway answer, what does the gateway cost, and what is lost when one dies?

Two real servers with a core each are kept full through the gateway, and one of them without it: rows a second for each
core that clients and gateway leave. More servers than there are cores have devices that wait instead of computing
("paced"). At 0.4 times the capacity a server is killed, one is stopped in the midst of its work, and servers are
drained, restarted and upgraded in turn, over gRPC and HTTP, without repeated requests. One tenant asks for 50 times its
share. The gateway keeps tenants with their servers, or is told no tenant ("affinity").

All parts take two hours. Each is kept in a file of `--trials`, and the same command goes on with those that are not
there, as long as it runs on the same machine.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.fleet.faults import FaultSettings, Story, befall
from bench.kit.fleet.hot_tenant import HotSettings, HotTenant
from bench.kit.fleet.judgement import Rate, linearity
from bench.kit.fleet.load import FleetClients
from bench.kit.fleet.paced import Pace, paced_code
from bench.kit.fleet.picture import draw_story
from bench.kit.fleet.real import RealFleet, RealSettings, real_fleet
from bench.kit.fleet.rolling import DRAIN, ROLLING, UPGRADE, RollingSettings, num_failed, roll
from bench.kit.fleet.running import running_fleet
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.saturation import draw
from bench.kit.served import Serving
from bench.kit.synthetic_home import BERT_BASE, SMALL, TenantHome, tenant_home
from bench.kit.trials import Trials

TINY = replace(
    SMALL, hidden_size=64, intermediate_size=128, num_heads=2, num_lower_layers=1, num_upper_layers=1, max_tokens=64
)
PARTS = ("linear", "gateway", "affinity", "hot", "loss", "hang", "rolling", "paced")
_MOST_PACED = 8
_DRAWS = 1_000
"""Of the bootstrap that an interval is from."""
_ASKED_ALONE = 8
"""hPLMs; of many, most requests without the gateway would meet a server that has to read their adapters first."""
_EDITION = 3
"""Version of the kept parts. Raise it when the measurement changes."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PacedSettings:
    """Fleets of so many servers, each as fast as its device of that pace."""

    servers: tuple[int, ...]
    rows_of_each: int
    pace: Pace = field(default=Pace(constant_s=0.01, per_row_s=0.04))
    max_rows: int = 8
    in_flight_of_each: int = 24
    tenants: int = 200


@dataclass(frozen=True)
class Settings:
    real: RealSettings
    paced: PacedSettings
    fault: FaultSettings
    rolling: RollingSettings
    hot: HotSettings
    turns: int
    alone_rows: int
    affinity_tenants: tuple[int, ...] = (1_000, 10_000)


FULL = Settings(
    real=RealSettings(BERT_BASE, tenants=10_000, full_rows=2_048),
    paced=PacedSettings((2, 4, _MOST_PACED), rows_of_each=600),
    fault=FaultSettings(before_s=10.0, after_s=40.0),
    rolling=RollingSettings(requests=100_000),
    hot=HotSettings(duration_batches=60, repeats=3),
    turns=5,
    alone_rows=1_000,
)
QUICK = Settings(
    real=RealSettings(SMALL, tenants=10_000, full_rows=768, busy=50),
    paced=PacedSettings((2,), rows_of_each=150),
    fault=FaultSettings(before_s=4.0, after_s=20.0, deadline_ms=2_000),
    rolling=RollingSettings(requests=1_000, callers=32),
    hot=HotSettings(duration_batches=40, repeats=1),
    turns=1,
    alone_rows=60,
)


@dataclass(frozen=True)
class Measured:
    """What one part has found; `picture` is SVG."""

    figures: Mapping[str, float]
    rows: Sequence[Row]
    picture: str | None = None


def linear(real: RealFleet, settings: Settings) -> Measured:
    """One server and both in turns."""
    one: list[Rate] = []
    both: list[Rate] = []
    ways: list[tuple[Callable[[], Rate], list[Rate]]] = [(real.full_server, one), (real.full_fleet, both)]
    for turn in range(settings.turns):
        for measure, rates in ways if turn % 2 == 0 else ways[::-1]:
            rates.append(measure())
    return Measured(linear_figures(one, both), [*_rate_rows("one server", one), *_rate_rows("two servers", both)])


def linear_figures(one: Sequence[Rate], both: Sequence[Rate]) -> dict[str, float]:
    over_one = [all_.rows_per_s / single.rows_per_s for single, all_ in zip(one, both, strict=True)]
    return {
        "fleet_linear_2": linearity(one, both),
        "fleet_linear_2_raw": median(over_one) / 2,
        "fleet_over_one_server": median(over_one),
        "one_server_rows_per_s": median(rate.rows_per_s for rate in one),
        "fleet_rows_per_s": median(rate.rows_per_s for rate in both),
        "clients_and_gateway_cores": median(rate.others_cores for rate in both),
    }


def _rate_rows(what: str, rates: Sequence[Rate]) -> list[Row]:
    return [
        {
            "part": what,
            "rows a second": rate.rows_per_s,
            "clients' and gateway's cores": rate.others_cores,
            "rows a second for each core left": rate.per_core,
        }
        for rate in rates
    ]


def gateway(real: RealFleet, settings: Settings) -> Measured:
    """The same requests through the gateway and without it, one at a time; the difference is of each request."""
    urls = [real.fleet.grpc_url, *real.fleet.direct_urls()]
    rows = real.rows(settings.alone_rows, real.hplms[:_ASKED_ALONE])
    through, *direct = map(np.array, real.clients.alone_us(urls, rows))
    without = np.mean(direct, axis=0)
    rng = np.random.default_rng(settings.alone_rows)
    drawn = np.median(rng.choice(through - without, (_DRAWS, len(through))), axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
    medians = {"p50 us": float(np.median(through)), "without it": float(np.median(without))}
    row = {"part": "gateway", "requests": len(through), **medians, "adds at least": low, "adds at most": high}
    added = {"gateway_us": float(np.median(through - without)), "gateway_us_low": low, "gateway_us_high": high}
    return Measured({**added, "gateway_p50_us": medians["p50 us"]}, [row])


def affinity(real: RealFleet, settings: Settings) -> Measured:
    """Both servers full, with and without the header that keeps tenants with their servers."""
    figures: dict[str, float] = {}
    rows: list[Row] = []
    for tenants in settings.affinity_tenants:
        hplms = real.home.hplms[:tenants]
        rates: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(settings.turns):
            for is_routed in (True, False) if turn % 2 == 0 else (False, True):
                rates[is_routed].append(real.full_fleet(hplms, is_routed).rows_per_s)
        gain = median(kept / dealt for kept, dealt in zip(rates[True], rates[False], strict=True))
        figures[f"affinity_gain_{tenants}"] = gain
        kept, dealt = median(rates[True]), median(rates[False])
        rows.append({"part": "affinity", "tenants": tenants, "rows a second": kept, "without affinity": dealt})
    return Measured(figures, rows)


def hot(real: RealFleet, settings: Settings) -> Measured:
    outcomes = HotTenant(real, settings.hot).outcomes()
    return Measured({"hot_tenant_points": median(one.points for one in outcomes)}, [one.row() for one in outcomes])


def loss(real: RealFleet, settings: Settings) -> Measured:
    story = befall(real, "loss", settings.fault)
    return Measured(fault_figures(story), [story.row()], draw_story(story))


def hang(real: RealFleet, settings: Settings) -> Measured:
    story = befall(real, "hang", settings.fault)
    return Measured(fault_figures(story), [story.row()])


def fault_figures(story: Story) -> dict[str, float]:
    kind = story.kind
    return {
        f"{kind}_failed": float(story.fault.num_failed),
        f"{kind}_recovery_s": story.fault.recovery_s,
        f"{kind}_on_time_since": story.fault.since,
        f"{kind}_all_servers_s": story.ready_s - story.fault.at_s,
    }


def rolling(real: RealFleet, settings: Settings) -> Measured:
    rolled = roll(real, settings.rolling, seed=settings.turns)
    figures = {f"{kind}_failed": float(num_failed(rolled.of(kind))) for kind in (DRAIN, ROLLING, UPGRADE)}
    figures |= {"rolled_failed": float(num_failed(rolled.requests)), "rolled_requests": float(len(rolled.requests))}
    return Measured(figures, [rolled.row(kind) for kind in (DRAIN, ROLLING, UPGRADE)])


def paced(settings: PacedSettings, seed: int) -> Measured:
    """Fleets of paced servers, each beside one of its own servers."""
    figures: dict[str, float] = {}
    rows: list[Row] = []
    with tenant_home(TINY, settings.tenants, [20], seed) as home, FleetClients() as clients:
        code = paced_code(home.home.path / "paced", settings.pace)
        rng = np.random.default_rng(seed)
        for count in one_by_one(settings.servers, "fleet", "paced servers"):
            one, all_ = _paced_rates(home, code, count, settings, clients, rng)
            figures[f"fleet_linear_{count}_paced"] = all_ / (count * one)
            rows.append({"part": "paced", "servers": count, "rows a second": all_, "one of them": one})
    return Measured(figures, rows)


def _paced_rates(
    home: TenantHome, code: Path, count: int, settings: PacedSettings, clients: FleetClients, rng: np.random.Generator
) -> tuple[float, float]:
    upper = {"dtype": "fp32", "threads": "1", "max_rows": str(settings.max_rows)}
    with running_fleet(home.home, Serving(upper=upper, code=code), count, ["--shared-cores"]) as fleet:
        found = []
        for url, servers in ((fleet.direct_urls()[0], 1), (fleet.grpc_url, count)):
            in_flight = servers * settings.in_flight_of_each
            for num_rows in (in_flight, servers * settings.rows_of_each):  # the first ones load what is asked for
                played = clients.full(url, draw(home.hplms, home.texts[20], num_rows + in_flight, rng), in_flight)
            found.append(played.rows_per_s(in_flight))
    return found[0], found[1]


def measure(settings: Settings, parts: Sequence[str], seed: int, trials: Trials) -> Measured:
    """Run the parts that are not kept; all that need real servers share one fleet."""
    on_real: dict[str, Callable[[RealFleet, Settings], Measured]] = {
        "linear": linear,
        "gateway": gateway,
        "affinity": affinity,
        "hot": hot,
        "loss": loss,
        "hang": hang,
        "rolling": rolling,
    }
    found = {part: kept for part in parts if (kept := _kept(part, trials)) is not None}
    chosen = [part for part in on_real if part in parts and part not in found]
    if chosen:
        with real_fleet(settings.real, seed) as real:
            for part in one_by_one(chosen, "fleet", "parts"):
                found[part] = _keep(part, on_real[part](real, settings), trials)
    if "paced" in parts and "paced" not in found:
        found["paced"] = _keep("paced", paced(settings.paced, seed), trials)
    in_order = [found[part] for part in PARTS if part in found]
    figures = {name: value for one in in_order for name, value in one.figures.items()}
    picture = next((one.picture for one in in_order if one.picture is not None), None)
    return Measured(figures, [row for one in in_order for row in one.rows], picture)


def _kept(part: str, trials: Trials) -> Measured | None:
    if (kept := trials.find(part)) is None:
        return None
    picture, figures, *rows = kept
    return Measured(figures, rows, picture["svg"])


def _keep(part: str, measured: Measured, trials: Trials) -> Measured:
    trials.keep(part, [{"svg": measured.picture}, measured.figures, *measured.rows])
    return measured


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    arguments.add_argument("--trials", type=Path, metavar="FOLDER", help="keep what was measured of each part there")


@bench(
    "fleet",
    quick_s=QUICK_LOADS_S,
    bars={
        "fleet_linear_2": at_least(0.95),
        f"fleet_linear_{_MOST_PACED}_paced": at_least(0.95),
        "gateway_us": at_most(300),
        "loss_failed": at_most(0),
        "loss_recovery_s": at_most(2),
        "hang_failed": at_most(0),
        "hang_recovery_s": at_most(4),
        "drain_failed": at_most(0),
        "rolling_failed": at_most(0),
        "upgrade_failed": at_most(0),
        "rolled_failed": at_most(0),
        "hot_tenant_points": at_most(2),
    },
    add_options=add_options,
)
def fleet(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    depends_on = {**asdict(settings), "seed": options.seed, "machine": machine(), "edition": _EDITION}
    trials = Trials(options.trials, depends_on)
    measured = measure(settings, options.only or PARTS, options.seed, trials)
    if options.json is not None and measured.picture is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.with_suffix(".svg").write_text(measured.picture, encoding="utf-8")
    return Result(asdict(settings), measured.figures, measured.rows)


if __name__ == "__main__":
    fleet.main()
