"""What do thousands of registered hPLMs cost: the list, the start of the server, bringing its view up to date?

The home has a few hPLMs; the others are rows that name copies of their folders, every fiftieth a copy of its own.
`list_s` is the whole process, from the start of Python to its end. `refresh_ms` is one `RegistrySnapshot.refresh`
after one hPLM was published.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from bench.kit.bulk import NewHplm, register_hplms
from bench.kit.entry import Result, at_most, bench
from bench.kit.scratch_home import add_home_option, copied_home, scratch_home
from bench.kit.served import Serving
from builder.serving import TritonServer

_COMMAND = "import sys, cli; sys.argv[0] = 'hplm'; cli.main()"


@dataclass(frozen=True)
class Settings:
    few: int
    many: int
    lists: int
    starts: int
    refreshes: int
    own_folder_every: int = 50


FULL = Settings(few=10, many=10_000, lists=7, starts=3, refreshes=40)
QUICK = Settings(few=10, many=10_000, lists=1, starts=1, refreshes=15)


def populate(home: Home, count: int, own_folder_every: int) -> None:
    """Register hPLMs until there are that many."""
    registry = Registry.open(home)
    models = registry.hplms()
    registry.close()
    hplms = []
    for number in range(len(models), count):
        model = models[number % len(models)]
        name = f"tenant{number % 997}/model{number}"
        folder = Path(model.folder)
        if number % own_folder_every == 0:
            folder = folder.with_name(f"{name.replace('/', '--')}@1")
            shutil.copytree(home.path / model.folder, home.path / folder)
        hplms.append(NewHplm(name, model.domain, folder.as_posix(), model.task, model.labels, model.metrics))
    register_hplms(home, hplms)


def seconds_to_list(home: Home, times: int, *options: str) -> float:
    """The median of whole processes; the first of them, which finds nothing in the caches, is not counted."""
    command = [sys.executable, "-c", _COMMAND, "list", "--home", str(home.path), *options]
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def seconds_to_start(home: Home) -> float:
    """Until the real server is ready to answer."""
    config = Serving(lower_instances=2, upper={"dtype": "fp32", "threads": "1"}).config(home)
    start = time.perf_counter()
    with TritonServer(config):
        return time.perf_counter() - start


def refresh_milliseconds(home: Home, times: int) -> list[float]:
    """One publication, one refresh; the snapshot's own thread is stopped, so that it does not come first."""
    snapshot = RegistrySnapshot(Registry.open(home), refresh_interval_s=3600.0)
    registry = Registry.open(home)
    entries = registry.hplms()
    taken = []
    for number in range(times):
        entry = entries[number * len(entries) // times]
        published = registry.publish_hplm(
            entry.id, entry.domain, entry.task, entry.labels, entry.folder, entry.metrics, pair=entry.pair
        )
        start = time.perf_counter()
        snapshot.refresh()
        taken.append(1e3 * (time.perf_counter() - start))
        if snapshot.find(entry.id) != published:
            raise HplmError("a refresh did not bring what was published")
    registry.close()
    snapshot.close()
    return taken


def measure(few: Home, many: Home, settings: Settings) -> list[dict[str, Any]]:
    starts: dict[Home, list[float]] = {few: [], many: []}
    for _ in range(settings.starts):
        for home, taken in starts.items():
            taken.append(seconds_to_start(home))
    rows = []
    for home, count in ((few, settings.few), (many, settings.many)):
        refreshes = refresh_milliseconds(home, settings.refreshes)
        rows.append(
            {
                "hPLMs": count,
                "list s": seconds_to_list(home, settings.lists),
                "list --json s": seconds_to_list(home, settings.lists, "--json"),
                "start-up s": median(starts[home]),
                "refresh ms": median(refreshes),
                "slowest refresh ms": max(refreshes),
            }
        )
    return rows


@bench(
    "registry",
    bars={"list_s": at_most(1), "startup_extra_s": at_most(2), "refresh_ms": at_most(50)},
    add_options=add_home_option,
)
def registry(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with scratch_home(options.home) as few:
        many = copied_home(few.path, few.path.with_name("many"))
        populate(few, settings.few, settings.own_folder_every)
        populate(many, settings.many, settings.own_folder_every)
        rows = measure(few, many, settings)
    by_few, by_many = rows
    figures = {
        "list_s": by_many["list s"],
        "startup_extra_s": by_many["start-up s"] - by_few["start-up s"],
        "refresh_ms": by_many["refresh ms"],
    }
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    registry.main()
