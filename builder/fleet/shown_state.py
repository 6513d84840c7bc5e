"""What a fleet says of itself in its folder, written where it has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from builder.fleet.fleet_folder import FleetFolder, FleetState, ServerEntry
from builder.fleet.member_state import ENDED, MemberState


class ShownState:
    """Keeps the file of `hplm fleet status` as the fleet is; a disk that is full ends no fleet.

    Args:
        folder: Where it is written.
        describe: Looks at the fleet.
        report: Takes lines for the operator.
    """

    def __init__(self, folder: FleetFolder, describe: Callable[[], FleetState], report: Callable[[str], None]) -> None:
        self._folder, self._describe, self._report = folder, describe, report
        self._written: FleetState | None = None
        self._complaint: str | None = None
        self._lock = threading.Lock()

    def refresh(self) -> FleetState:
        """Look at the fleet, and write what is new; what hinders that is reported once."""
        with self._lock:
            state = self._describe()
            if state != self._written:
                self._write(state)
            return state

    def _write(self, state: FleetState) -> None:
        try:
            self._folder.write(state)
        except OSError as error:
            self._written = None
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._report(f"hplm fleet status shows what was before: {error}")
        else:
            self._written, self._complaint = state, None


class LastServers:
    """Says why a fleet has no server any more that answers or comes back by itself.

    One that was drained by hand may be started again by hand. So the last failure ends the fleet, and a drain after it
    does not, unless no server was drained.
    """

    def __init__(self) -> None:
        self._before: Mapping[str, str] = {}
        self._has_failed_last = False

    def why_over(self, servers: Sequence[ServerEntry], is_ordering: bool) -> str | None:
        """Look at the servers again; None where the fleet goes on.

        While an order is at work, a server that is between its end and its start has ended for a moment only.
        """
        states = {each.server: each.state for each in servers}
        ended_now = {state for server, state in states.items() if state in ENDED and self._before.get(server) != state}
        if ended_now:
            self._has_failed_last = MemberState.FAILED in ended_now
        self._before = states
        failed = [each for each in servers if each.state == MemberState.FAILED]
        if is_ordering or not failed or any(state not in ENDED for state in states.values()):
            return None
        if len(failed) < len(servers) and not self._has_failed_last:
            return None
        others = " or were drained" if len(failed) < len(servers) else ""
        return f"all servers have failed{others}; the last one: {failed[-1].reason}"
