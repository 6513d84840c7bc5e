"""The folder of a home's fleet: who runs, and the logs. One fleet at a time has it.

Machines that share a home have one each, where `$HPLM_LOCAL` names a folder of their own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from backends.errors import LockedError
from backends.file_lock import locked
from backends.home import Home
from backends.storage import write_errors_are_clear
from builder.fleet.errors import NoFleetError
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.started_with import StartedWith

LOCAL_VARIABLE = "HPLM_LOCAL"
_FORMAT = 1
_CLAIM_S = 1.0
"""Time for those who look whether a fleet runs to let go of its lock."""
_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """One server, as `hplm fleet status` shows it."""

    server: str
    state: str
    reason: str | None
    http: int | None
    grpc: int | None
    metrics: int | None
    health: int | None
    pid: int | None
    restarts: int
    log: str
    release: str = ""
    export: str = ""
    roots: tuple[str, ...] | None = None

    @property
    def started_with(self) -> StartedWith:
        return StartedWith(self.release, self.export, self.roots)


@dataclass(frozen=True, kw_only=True)
class GatewayEntry:
    """The gateway, as `hplm fleet status` shows it; `admin` is its private socket."""

    state: str
    http: str
    grpc: str
    pid: int | None
    restarts: int
    admin: str | None
    log: str
    has_tls: bool = False

    @property
    def urls(self) -> str:
        """Where clients reach it."""
        http, tls = ("https", " (TLS)") if self.has_tls else ("http", "")
        return f"grpc://{self.grpc}{tls}  {http}://{self.http}"


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """Who runs.

    Attributes:
        health: The fleet's own health port, which takes orders.
        is_ordering: Whether one is at work.
        order_limit_s: The longest time that one takes; the default is for fleets of earlier releases, which say none.
    """

    pid: int
    host: str
    health: str
    gateway: GatewayEntry
    servers: list[ServerEntry]
    is_ordering: bool = False
    order_limit_s: float = 900.0
    format: int = field(default=_FORMAT)


class FleetFolder:
    """`run/fleet` of a home; or, in a folder of this machine alone, one that is named after the home's path."""

    def __init__(self, home: Home) -> None:
        self._home = home
        local = os.environ.get(LOCAL_VARIABLE)
        self.path = Path(local).absolute() / f"fleet-{_digest(home.path)}" if local else home.run / "fleet"

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder; the lock ends with the process.

        Raises:
            ConflictError: Another fleet runs on the home.
            NotWritableError: This user may not write here.
        """
        another = "another folder" if os.environ.get(LOCAL_VARIABLE) else "a folder of this machine"
        end = time.monotonic() + _CLAIM_S
        with ExitStack() as held:
            with write_errors_are_clear(self.path, f"or name {another} with {LOCAL_VARIABLE}"):
                self.path.mkdir(parents=True, exist_ok=True)
                while True:
                    try:
                        held.enter_context(locked(self._lock, self._conflict()))
                        break
                    except LockedError:
                        if time.monotonic() > end:
                            raise
                    time.sleep(_LOOK_AGAIN_S)
            yield

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Hold what lets one program apply at a time.

        Raises:
            ConflictError: Another one does.
            NotWritableError: This user may not write here.
        """
        conflict = f"another hplm fleet apply is at work on {self._home.path}"
        with ExitStack() as held:
            with write_errors_are_clear(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self.path / ".apply.lock", conflict))
            yield

    @property
    def journal(self) -> Path:
        """What an apply that has not finished notes of itself."""
        return self.path / "apply.json"

    @property
    def placement(self) -> Path:
        """Which roots the servers are to hold; absent where each holds all."""
        return self.path / "placement.json"

    def wanted(self, servers: Sequence[str], placement: FleetPlacement) -> dict[str, StartedWith]:
        """What servers would be started with now.

        Raises:
            NotFoundError: Nothing is exported.
            UnavailableError: As `installed_release`.
        """
        now = StartedWith.now(self._home.repository, None)
        return {server: replace(now, roots=placement.roots_of(server)) for server in servers}

    def write(self, state: FleetState) -> None:
        """Replace what is said of the fleet."""
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
        new.replace(self._state)

    def forget(self) -> None:
        """Say nothing of a fleet any more."""
        self._state.unlink(missing_ok=True)

    def begin(self) -> None:
        """Remove what an earlier fleet left that was killed, and an apply to it: servers now start as is wanted."""
        self.forget()
        self.journal.unlink(missing_ok=True)

    def running(self) -> FleetState:
        """Read who runs.

        Raises:
            NoFleetError: None does.
            NotWritableError: One seems to, and this user may not look at its lock.
            PermissionError: The folder is another user's.
        """
        state = self._read()
        if state is None or not self._is_held():
            last = f": the last one, process {state.pid} of {state.host}, has ended" if state is not None else ""
            raise NoFleetError(f"no fleet runs on {self._home.path}{last}; hplm fleet serve starts one")
        return state

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    @property
    def _state(self) -> Path:
        return self.path / "fleet.json"

    def _conflict(self) -> str:
        other = self._read()
        by = f", as process {other.pid} of {other.host}" if other is not None else ""
        return f"a fleet runs on {self._home.path} already{by}; hplm fleet status shows it"

    def _read(self) -> FleetState | None:
        """What the last fleet said, perhaps of another release; None where there was none that can be understood."""
        try:
            content: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
            servers = [ServerEntry(**_known(ServerEntry, each)) for each in content.pop("servers")]
            servers = [replace(each, roots=None if each.roots is None else tuple(each.roots)) for each in servers]
            gateway = GatewayEntry(**_known(GatewayEntry, content.pop("gateway")))
            return FleetState(gateway=gateway, servers=servers, **_known(FleetState, content))
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def _is_held(self) -> bool:
        """Look twice whether a fleet runs: to look is to hold the lock for a moment, and others may look, too."""
        if not self._is_locked():
            return False
        time.sleep(_LOOK_AGAIN_S)
        return self._is_locked()

    def _is_locked(self) -> bool:
        if not self._lock.exists():
            return False
        try:
            with write_errors_are_clear(self._lock), locked(self._lock, "held"):
                return False
        except LockedError:
            return True


def _digest(home: Path) -> str:
    return blake2b(str(home.absolute()).encode(), digest_size=4).hexdigest()


def _known(kind: type[Any], content: dict[str, Any]) -> dict[str, Any]:
    """Leave out what another release says besides."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
