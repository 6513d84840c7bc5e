"""`hplm manager`: one service per home, listening until it is stopped."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from backends.errors import InvalidArgumentError, UnavailableError
from backends.file_lock import locked
from backends.home import Home
from backends.registry.registry import Registry
from builder.manager.admission import Admission
from builder.manager.api.app import create_app
from builder.manager.api.browsers import LOOPBACK_ADDRESSES
from builder.manager.callers import Callers
from builder.manager.housekeeping import Housekeeping, Retention
from builder.manager.local_workers import LocalWorkers
from builder.manager.manager import Manager
from builder.manager.ray_workers import RayWorkers
from builder.manager.store import JobStore
from builder.manager.supervisor import Limits, Supervisor
from builder.manager.uploads import Uploads
from builder.manager.workers import Workers

LOGGER = logging.getLogger(__name__)
EXECUTORS = ("local", "ray")
_SHUTDOWN_GRACE_S = 3
_MAX_PORT = 65535
_MAX_NICENESS = 19


@dataclass(frozen=True)
class ManagerConfig:
    """Settings of the operator.

    `with_tokens`: callers show a token of the registry, which has a role; or that of `token_file`, whose is admin.
    `processes` is how many each job may count and compute tables with; `niceness` how far local ones stand back.
    """

    address: str = "127.0.0.1"
    port: int = 8080
    executor: str = "local"
    ray_address: str | None = None
    processes: int = 1
    niceness: int = 10
    max_upload_bytes: int = 1 << 30
    token_file: Path | None = None
    with_tokens: bool = False
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the service."""
        return self.address in LOOPBACK_ADDRESSES

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise InvalidArgumentError(f"executor {self.executor!r} is not one of {', '.join(EXECUTORS)}")
        if self.ray_address is not None and self.executor != "ray":
            raise InvalidArgumentError("a Ray address is of use only with the executor ray")
        if not 0 <= self.port <= _MAX_PORT:
            raise InvalidArgumentError(f"port {self.port} is not between 0 and {_MAX_PORT}")
        if self.max_upload_bytes < 1 or self.processes < 1:
            raise InvalidArgumentError("the upload limit and the number of processes must be positive")
        if not 0 <= self.niceness <= _MAX_NICENESS:
            raise InvalidArgumentError(f"niceness {self.niceness} is not between 0 and {_MAX_NICENESS}")


def serve_manager(home: Home, config: ManagerConfig, on_ready: Callable[[str], None]) -> None:
    """Listen until SIGTERM or Ctrl-C; jobs that run then go on, and the next manager takes them up again."""
    with opened_manager(home, config) as manager, _listening(config.address, config.port) as listener:
        settings = uvicorn.Config(
            create_app(manager), timeout_graceful_shutdown=_SHUTDOWN_GRACE_S, server_header=False, log_level="warning"
        )
        on_ready(f"http://{config.address}:{listener.getsockname()[1]}")
        uvicorn.Server(settings).run([listener])


@contextmanager
def opened_manager(home: Home, config: ManagerConfig) -> Iterator[Manager]:
    """Everything but the listening; a home has one manager at a time."""
    token = None if config.token_file is None else _token(config.token_file)
    if token is None and not config.with_tokens and not config.is_local:
        LOGGER.warning("no token on %s: everybody who reaches this port can change every hPLM", config.address)
    with _only_manager_of(home):
        registry, store = Registry.open(home), JobStore.open(home)
        try:
            supervisor = Supervisor(store, registry, _workers(home, config), config.limits)
            uploads = Uploads(
                home, config.max_upload_bytes, quota_of=lambda tenant: registry.quotas.of(tenant).upload_bytes
            )
            housekeeping = Housekeeping(home, store, uploads, config.retention)
            admission = Admission(registry, store, uploads)
            callers = Callers(registry.tokens.find, config.with_tokens, token)
            yield Manager(home, registry, store, uploads, supervisor, housekeeping, admission, callers, config.is_local)
        finally:
            store.close()
            registry.close()


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {address}:{port}: {error.strerror or error}") from error


def _only_manager_of(home: Home) -> AbstractContextManager[None]:
    return locked(home.run / "manager.lock", f"a manager of {home.path} is running already")


def _workers(home: Home, config: ManagerConfig) -> Workers:
    if config.executor == "ray":
        return RayWorkers(home, config.processes, config.ray_address)
    return LocalWorkers(home, config.processes, config.niceness)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"token file {path} cannot be read: {error}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgumentError(f"token file {path} must hold one word of printable ASCII")
    return token
