"""Running servers of a variant: where they are asked, which processes they are, and what they wrote of themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from backends.errors import UnavailableError
from backends.trace import TRACE_VARIABLE
from bench.kit.fleet.running import fleet_log, running_fleet
from bench.kit.idle import wait_until_idle
from bench.kit.overload import OverloadHome
from bench.kit.served import Serving, served
from bench.kit.twins.paced import paced_code
from bench.kit.twins.variants import Variant
from builder.fleet.fleet_folder import ServerEntry
from builder.serving import TracedSpan
from builder.serving.trace_file import read_spans

_UPPER = "hplm_upper"
_UNREADY = ": not ready: "


@dataclass(frozen=True)
class Standing:
    """One server that runs."""

    name: str
    pid: int
    metrics_url: str

    def processes(self) -> dict[int, str]:
        """Return the command lines of its processes."""
        of_server = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        return {process.pid: " ".join(process.cmdline()) for process in of_server}


@dataclass(frozen=True)
class Ground:
    """Where a variant is asked; one server's name is the variant's."""

    url: str
    servers: Sequence[Standing]
    trace: Path
    log: Path | None = None
    """Of several servers: what their watchdogs say."""

    def wait_until_idle(self) -> None:
        """Wait for all servers at once: each is looked at for seconds."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            for waited in [threads.submit(wait_until_idle, server) for server in self.servers]:
                waited.result()

    def num_left_out(self) -> int:
        """Return how often a server was not ready so far, for which the gateway leaves it out."""
        return 0 if self.log is None else self.log.read_text(encoding="utf-8").count(_UNREADY)

    def spans_by_server(self) -> dict[str, list[TracedSpan]]:
        """Read what each server's processes have traced so far."""
        spans = read_spans(self.trace)
        pids = {server.name: server.processes().keys() for server in self.servers}
        return {name: [span for span in spans if span.pid in of_server] for name, of_server in pids.items()}


@contextmanager
def ground_of(variant: Variant, home: OverloadHome) -> Iterator[Ground]:
    """Start the servers of a variant, traced."""
    with tempfile.TemporaryDirectory(prefix="hplm-trace-") as trace:
        code = paced_code(home.home.path / "paced", home.cost_model) if variant.is_paced else None
        serving = Serving(upper=home.engine.parameters, code=code, environment={TRACE_VARIABLE: trace})
        started = _alone(variant, home, serving) if variant.servers == 1 else _behind(variant, home, serving)
        with started as (url, servers):
            yield Ground(url, servers, Path(trace), None if variant.servers == 1 else fleet_log(home.home))


@contextmanager
def _alone(variant: Variant, home: OverloadHome, serving: Serving) -> Iterator[tuple[str, Sequence[Standing]]]:
    with served(home.home, serving) as server:
        standing = Standing(variant.name, server.pid, server.metrics_url)
        if variant.is_isolated:
            with _isolated(standing):
                yield server.grpc_url, [standing]
        else:
            yield server.grpc_url, [standing]


@contextmanager
def _behind(variant: Variant, home: OverloadHome, serving: Serving) -> Iterator[tuple[str, Sequence[Standing]]]:
    """Start `hplm fleet serve` as an operator does."""
    with running_fleet(home.home, serving, variant.servers) as fleet:
        servers = fleet.servers()
        yield fleet.grpc_url, [Standing(each.server, _known(each.pid), _metrics_url(each)) for each in servers]


def _metrics_url(server: ServerEntry) -> str:
    return f"http://127.0.0.1:{_known(server.metrics)}/metrics"


def _known(number: int | None) -> int:
    if number is None:
        raise UnavailableError("a server of the fleet does not run any more")
    return number


@contextmanager
def _isolated(server: Standing) -> Iterator[None]:
    """Give the engine's process the first core for itself; this process and all others of the server get the rest."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UnavailableError("an engine alone on a core needs a second one for all else")
    own, others = {cores[0]}, set(cores[1:])
    for pid, command in server.processes().items():
        _pin(pid, own if _UPPER in command else others)
    _pin(os.getpid(), others)
    try:
        yield
    finally:
        _pin(os.getpid(), set(cores))


def _pin(pid: int, cores: set[int]) -> None:
    """Let all threads of a process run on some cores only; threads that they start inherit it."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)
