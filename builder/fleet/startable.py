"""The check that a server of a fleet would come back, made before it is stopped."""

from __future__ import annotations

from backends.errors import ConflictError, FormatVersionError, HplmError
from backends.home import Home
from backends.registry.registry import Registry
from builder.fleet.member_plan import member_start
from builder.fleet.settings import FleetSettings
from builder.fleet.started_with import StartedWith, installed_release


def require_startable(home: Home, settings: FleetSettings, server: str, release: str) -> None:
    """Read all that a start of the server reads: registry, export and placement.

    Args:
        home: Whose fleet.
        settings: Of the fleet.
        server: One of its names.
        release: What was installed when the fleet was started; empty where that is unknown.

    Raises:
        ConflictError: Something is away, or damaged.
    """
    try:
        _require_registry(home, release)
        StartedWith.now(home.repository, None)
        member_start(home, settings, settings.names.index(server))
    except (HplmError, OSError) as error:
        raise ConflictError(f"{server} was not stopped, as it would not come back: {error}") from error


def _require_registry(home: Home, release: str) -> None:
    """Open the registry; after an upgrade it may be of a format that only servers started by now can read."""
    try:
        Registry.open(home).close()
    except FormatVersionError:
        if installed_release() == release:
            raise
