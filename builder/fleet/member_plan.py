"""How each server of a fleet is started: its ports, its log, its cores, its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from backends.held_roots import Roots, roots_environment
from backends.home import HOME_VARIABLE, Home
from builder.cpu_flags import cpu_flags
from builder.export.in_force import changes_of_run, configurations_of_run
from builder.fleet.fleet_folder import FleetFolder
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.settings import PORTS_APART, FleetSettings
from builder.serving.config import ServerConfig
from builder.serving.ports import require_free
from builder.serving.supervisor import Supervision

_HTTP, _GRPC, _METRICS, _HEALTH = range(4)
_ADDRESS = "127.0.0.1"
"""Where servers of a fleet listen, as `ServerConfig` and `Supervision` have it by default."""
_GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


class MemberStart(NamedTuple):
    """What a server is started with."""

    config: ServerConfig
    roots: Roots


def member_start(home: Home, settings: FleetSettings, index: int) -> MemberStart:
    """Return what a server is started with, as the home's export and the fleet's placement are now."""
    folder, name = FleetFolder(home), settings.names[index]
    roots = FleetPlacement.read(folder.placement).roots_of(name)
    changes = changes_of_run(home.repository, settings.of_run, cpu_flags())
    environment = {HOME_VARIABLE: str(home.path.absolute()), **settings.of_run.environment, **roots_environment(roots)}
    if settings.gpus:
        environment[_GPU_VARIABLE] = settings.gpus[index]
    config = ServerConfig(
        repository=home.repository,
        http_port=_port(settings, index, _HTTP),
        grpc_port=_port(settings, index, _GRPC),
        metrics_port=_port(settings, index, _METRICS),
        log_path=folder.log(name),
        log_verbose=settings.log_verbose,
        max_log_bytes=settings.max_log_bytes,
        ready_timeout_s=settings.ready_timeout_s,
        environment=environment,
        configurations=configurations_of_run(home.repository, changes),
    )
    return MemberStart(config, roots)


def member_supervision(settings: FleetSettings, index: int) -> Supervision:
    return Supervision(
        health_port=_port(settings, index, _HEALTH),
        drain_s=settings.drain_s,
        max_restarts=settings.max_restarts,
        port_option="--first-port",
    )


def require_free_ports(settings: FleetSettings) -> None:
    """Reject ports of servers that other programs have, before any server starts.

    Raises:
        PortInUseError: One is in use.
    """
    for index in range(settings.num_servers):
        for which in (_HTTP, _GRPC, _METRICS, _HEALTH):
            require_free({"--first-port": (_ADDRESS, _port(settings, index, which))})


def core_shares(cores: Sequence[int], num_servers: int) -> list[frozenset[int]]:
    """Deal the cores to the servers, neighbours together; with fewer cores than servers each may use all."""
    if len(cores) < num_servers:
        return [frozenset(cores)] * num_servers
    bounds = [len(cores) * number // num_servers for number in range(num_servers + 1)]
    ordered = sorted(cores)
    return [frozenset(ordered[first:last]) for first, last in pairwise(bounds)]


def _port(settings: FleetSettings, index: int, which: int) -> int | None:
    return None if settings.first_port is None else settings.first_port + PORTS_APART * index + which
