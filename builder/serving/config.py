"""The settings that a server is started with, and its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from backends.errors import InvalidArgumentError, shown
from builder.serving.exported_files import ExportedFiles
from builder.serving.tls import Tls

MEBIBYTE = 1 << 20
MAX_PORT = 65535
READY_TIMEOUT_S = 600.0
"""For loading; many roots on a cold disk take minutes."""
_ADMINISTRATIVE = ("shared-memory", "model-repository", "trace", "logging")
"""Triton's names for groups of endpoints."""
_ADMIN_HEADER = "hplm-admin-key"
_GRPC_HEADER_PREFIX = "triton-grpc-protocol-"
_HTTP_THREADS = 8
_STUB_TIMEOUT_S = 120
_SHARED_MEMORY_BYTES = MEBIBYTE
"""Of each instance at first, and for each growth: the least that the Python backend takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A port of None means "any free one"; `environment` is added to that of the caller.

    With `tls`, gRPC is encrypted; HTTP, which Triton cannot encrypt, then listens on this machine only. Metrics listen
    where the others do, unless they have an address of their own.
    """

    repository: Path
    address: str = "127.0.0.1"
    metrics_address: str | None = None
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    tls: Tls | None = None
    log_path: Path | None = None
    max_log_bytes: int = 64 * MEBIBYTE
    """Beyond it the log moves to `<name>.1`, which is as large."""
    log_verbose: int = 0
    ready_timeout_s: float = READY_TIMEOUT_S
    exit_timeout_s: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)
    configurations: Mapping[str, str] = field(default_factory=dict)
    """Models that get this text instead of their `config.pbtxt`."""
    exported: ExportedFiles | None = None
    """What to load in place of the export that the repository has by then."""
    extra_arguments: tuple[str, ...] = ()

    @property
    def http_address(self) -> str:
        return self.address if self.tls is None else "127.0.0.1"

    def __post_init__(self) -> None:
        for address in (self.address, self.metrics_address):
            if address is not None:
                _require_listenable(address)
        given = [port for port in (self.http_port, self.grpc_port, self.metrics_port) if port is not None]
        for port in given:
            if not 0 < port <= MAX_PORT:
                raise InvalidArgumentError(f"port {port} is not between 1 and {MAX_PORT}")
        for port in given:
            if given.count(port) > 1:
                raise InvalidArgumentError(f"port {port} is given twice; HTTP, gRPC and metrics need one each")
        if self.max_log_bytes < MEBIBYTE:
            raise InvalidArgumentError("a log needs at least 1 MiB")
        if min(self.ready_timeout_s, self.exit_timeout_s) <= 0:
            raise InvalidArgumentError("timeouts of a server must be positive")


def _require_listenable(address: str) -> None:
    """Reject names and IPv6 addresses: Triton would listen nowhere, and not say so."""
    try:
        IPv4Address(address)
    except ValueError:
        raise InvalidArgumentError(
            f"Triton listens on an IPv4 address, such as 127.0.0.1, or 0.0.0.0, every network; not on {shown(address)}"
        ) from None


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that one server listens on."""

    http: int
    grpc: int
    metrics: int


def server_arguments(
    config: ServerConfig, ports: Ports, backend_directory: Path, shm_prefix: str, admin_key: str
) -> list[str]:
    """The arguments of tritonserver, without the program itself."""
    return [
        f"--model-repository={config.repository.absolute()}",
        f"--backend-directory={backend_directory}",
        *_endpoint_arguments(config, ports),
        *_restriction_arguments(admin_key),
        *_model_arguments(),
        *_python_backend_arguments(shm_prefix),
        f"--exit-timeout-secs={config.exit_timeout_s}",
        f"--log-verbose={config.log_verbose}",
        *config.extra_arguments,
    ]


def _endpoint_arguments(config: ServerConfig, ports: Ports) -> list[str]:
    return [
        f"--http-address={config.http_address}",
        f"--grpc-address={config.address}",
        f"--metrics-address={config.metrics_address or config.address}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        f"--http-thread-count={_HTTP_THREADS}",
        *(config.tls.arguments if config.tls is not None else ()),
    ]


def _restriction_arguments(admin_key: str) -> list[str]:
    """Close what changes or reads the machine; what stock clients need to ask stays open."""
    restriction = f"{','.join(_ADMINISTRATIVE)}:{_ADMIN_HEADER}={admin_key}"
    return [f"--http-restricted-api={restriction}", f"--grpc-restricted-protocol={restriction}"]


def admin_headers(admin_key: str) -> dict[str, str]:
    """Return the headers that open Triton's administrative endpoints, over either protocol."""
    return {_ADMIN_HEADER: admin_key, f"{_GRPC_HEADER_PREFIX}{_ADMIN_HEADER}": admin_key}


def _model_arguments() -> list[str]:
    return [
        # Rendered configurations are complete; completing them would start every model's stub once more.
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--model-control-mode=none",
    ]


def _python_backend_arguments(shm_prefix: str) -> list[str]:
    settings = {
        "shm-region-prefix-name": shm_prefix,
        "shm-default-byte-size": str(_SHARED_MEMORY_BYTES),
        "shm-growth-byte-size": str(_SHARED_MEMORY_BYTES),
        "stub-timeout-seconds": str(_STUB_TIMEOUT_S),
    }
    return [f"--backend-config=python,{name}={value}" for name, value in settings.items()]
