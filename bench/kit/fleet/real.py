"""Two real servers behind the gateway, what is asked of them, and how much they can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import psutil

from backends.root.geometry import RootGeometry
from bench.kit.fleet.judgement import Rate
from bench.kit.fleet.load import FleetClients
from bench.kit.fleet.running import RunningFleet, only_cores, running_fleet
from bench.kit.saturation import HplmText, draw
from bench.kit.served import Serving
from bench.kit.synthetic_home import TenantHome, tenant_home
from loadtest.in_process import Played
from loadtest.schedule import Row
from workload.arrivals import PoissonArrivals

SERVERS = 2
_WARM_ROWS = 256


@dataclass(frozen=True)
class RealSettings:
    """The servers and their texts.

    Attributes:
        tenants: hPLMs of the home, one of each tenant; all parts but that of affinity ask the first `busy` of them.
        full_rows: Rows of one measurement of a full fleet or server.
        in_flight: Requests under way in it, for each server.
    """

    geometry: RootGeometry
    tenants: int
    full_rows: int
    busy: int = 200
    tokens: int = 20
    in_flight: int = 128
    dtype: str = "bf16"


@dataclass
class RealFleet:
    """A running fleet on two cores, with clients that may run on both or beside the first server."""

    fleet: RunningFleet
    home: TenantHome
    settings: RealSettings
    cores: Sequence[int]
    clients: FleetClients
    beside: FleetClients
    rng: np.random.Generator
    _capacity_per_s: float | None = field(default=None)

    @property
    def hplms(self) -> Sequence[str]:
        """Those that most parts ask."""
        return self.home.hplms[: self.settings.busy]

    def rows(self, count: int, hplms: Sequence[str] | None = None) -> list[HplmText]:
        return draw(self.hplms if hplms is None else hplms, self.home.texts[self.settings.tokens], count, self.rng)

    def planned(
        self, rate_per_s: float, duration_s: float, deadlines: Callable[[], int] | None, hplms: Sequence[str]
    ) -> list[Row]:
        """Poisson arrivals of hPLMs drawn uniformly."""
        times_s = PoissonArrivals(rate_per_s).times_s(duration_s, self.rng).tolist()
        rows = self.rows(len(times_s), hplms)
        return [
            Row(at_s, hplm, text, None if deadlines is None else deadlines())
            for at_s, (hplm, text) in zip(times_s, rows, strict=True)
        ]

    def full_fleet(self, hplms: Sequence[str] | None = None, is_routed: bool = True) -> Rate:
        """Keep both servers full through the gateway."""
        gateway = psutil.Process(self.fleet.gateway_pid)
        before_s = _cpu_s(gateway)
        rows, in_flight = self.rows(self.settings.full_rows * SERVERS, hplms), self.settings.in_flight * SERVERS
        played = self.clients.full(self.fleet.grpc_url, rows, in_flight, is_routed)
        others = played.effort.cpu_s + _cpu_s(gateway) - before_s
        return self._rate(played, float(SERVERS), others)

    def full_server(self) -> Rate:
        """Keep the first server full without the gateway, by clients on the other core, whose server does nothing."""
        url, rows = self.fleet.direct_urls()[0], self.rows(self.settings.full_rows)
        played = self.beside.full(url, rows, self.settings.in_flight)
        return self._rate(played, 1.0, played.effort.cpu_s)

    def capacity_per_s(self) -> float:
        """Rows a second that both answer when they are kept full."""
        if self._capacity_per_s is None:
            self._capacity_per_s = self.full_fleet().rows_per_s
        return self._capacity_per_s

    def _rate(self, played: Played, cores: float, others_cpu_s: float) -> Rate:
        edge = self.settings.in_flight
        return Rate(played.rows_per_s(edge), cores, float(len(self.cores)), others_cpu_s / played.effort.wall_s)


@contextmanager
def real_fleet(settings: RealSettings, seed: int) -> Iterator[RealFleet]:
    """Two servers with a core each, warm, on a home of random weights."""
    serving = Serving(upper={"dtype": settings.dtype, "threads": "1"})
    with (
        tenant_home(settings.geometry, settings.tenants, [settings.tokens], seed) as home,
        only_cores(SERVERS) as cores,
        running_fleet(home.home, serving, SERVERS) as fleet,
        FleetClients() as clients,
        FleetClients(cores[1:]) as beside,
    ):
        made = RealFleet(fleet, home, settings, cores, clients, beside, np.random.default_rng(seed))
        for used in (clients, beside):
            used.full(fleet.grpc_url, made.rows(_WARM_ROWS), settings.in_flight)
        yield made


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
