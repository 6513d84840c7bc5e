"""What does it cost the servers of a fleet to stay up to date, with thousands of hPLMs in one registry?

Each server's processes poll the registry as `RegistrySnapshot` does, each a process of its own, while hPLMs are
published: an SQLite file, then PostgreSQL. `refresh_ms_p99` is of the looks that brought something, over all processes,
for the slower of the two; those that brought nothing have columns of their own. There is no server and no load.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.registry import Registry
from bench.kit.bulk import NewHplm, register_hplms
from bench.kit.entry import Result, at_most, bench
from bench.kit.poller import pollers
from bench.kit.scratch_postgres import scratch_postgres


@dataclass(frozen=True)
class Settings:
    processes_per_server: int
    seconds: float
    servers: int = 10
    hplms: int = 10_000
    publications_per_s: float = 2.0


FULL = Settings(processes_per_server=3, seconds=120.0)
QUICK = Settings(processes_per_server=1, seconds=8.0)


@contextmanager
def _in_sqlite() -> Iterator[None]:
    yield


@contextmanager
def _in_postgres() -> Iterator[None]:
    with scratch_postgres() as server:
        os.environ[REGISTRY_VARIABLE] = server.url
        try:
            yield
        finally:
            del os.environ[REGISTRY_VARIABLE]


REGISTRIES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "sqlite": _in_sqlite,
    "postgresql": _in_postgres,
}


def fill(registry: Registry, home: Home, count: int) -> None:
    """Register so many hPLMs; there are no files, because pollers read none."""
    domain = registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    hplms = [
        NewHplm(f"tenant{number % 997}/model{number}", domain, f"bank/mini/{number}", "classification", ["a", "b"], {})
        for number in range(count)
    ]
    register_hplms(home, hplms)


def measure(name: str, settings: Settings) -> dict[str, Any]:
    with REGISTRIES[name](), tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        home = Home(Path(folder))
        with closing(Registry.open(home, create=True)) as registry:
            fill(registry, home, settings.hplms)
            with pollers(home, settings.servers * settings.processes_per_server) as running:
                running.wait_ready()
                publications = publish(registry, settings)
                looks = running.end()
    return {
        "registry": name,
        "processes": settings.servers * settings.processes_per_server,
        "publications": publications,
        "refreshes": len(looks.refreshes),
        "refresh ms p50": float(np.percentile(looks.refreshes, 50)),
        "refresh ms p99": float(np.percentile(looks.refreshes, 99)),
        "slowest ms": max(looks.refreshes),
        "idle looks": len(looks.idle),
        "idle ms p50": float(np.percentile(looks.idle, 50)),
        "idle ms p99": float(np.percentile(looks.idle, 99)),
    }


def publish(registry: Registry, settings: Settings) -> int:
    """Publish new versions at their rate for the time of the measurement; return how many."""
    ids = [entry.id for entry in registry.hplm_page(500)]
    domain = registry.domain("mini", "general")
    begins_at, published = time.monotonic(), 0
    while (due_s := published / settings.publications_per_s) < settings.seconds:
        time.sleep(max(0.0, begins_at + due_s - time.monotonic()))
        registry.publish_hplm(ids[published % len(ids)], domain, "classification", ["a", "b"], "bank/mini/new", {})
        published += 1
    time.sleep(1.0)  # the last one is to be seen by all
    return published


def _add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--only", nargs="+", choices=REGISTRIES, metavar="REGISTRY", help=f"of {', '.join(REGISTRIES)}; all"
    )


@bench("polling", bars={"refresh_ms_p99": at_most(50)}, add_options=_add_options)
def polling(options: Namespace) -> Result:
    if os.environ.get(REGISTRY_VARIABLE):
        raise InvalidArgumentError(f"unset {REGISTRY_VARIABLE}: this benchmark makes registries of its own")
    settings = QUICK if options.quick else FULL
    rows = [measure(name, settings) for name in options.only or REGISTRIES]
    each = {f"refresh_ms_p99_{row['registry']}": row["refresh ms p99"] for row in rows}
    return Result(asdict(settings), {"refresh_ms_p99": max(each.values()), **each}, rows)


if __name__ == "__main__":
    polling.main()
