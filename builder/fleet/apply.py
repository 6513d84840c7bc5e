"""Bring a running fleet to what is exported, installed and placed, a server at a time, while the others answer.

Usage:
    apply = FleetApply(home, report)
    apply.steps()                     # what would be done
    with apply.begun(placement, restart=False):
        apply.run(force=False)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from backends.errors import ConflictError, HplmError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.storage import write_errors_are_clear
from builder.fleet.apply_journal import ApplyJournal
from builder.fleet.control import order, require_alive, require_here
from builder.fleet.errors import NoFleetError
from builder.fleet.fleet_folder import FleetFolder, FleetState, ServerEntry
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.member_state import ENDED, MemberState
from builder.fleet.started_with import StartedWith
from builder.serving.errors import BusyError

_BUSY = (MemberState.STARTING, MemberState.DRAINING)
_POLL_S = 0.2
_PATIENCE_S = 60.0
"""For another server to become ready, and for the fleet to say what a server was started with."""
_MOST_RESTARTS = 2
"""Of one server: an export may come between its restart and the end."""
_GO_ON = "run hplm fleet apply again: it goes on there"


@dataclass(frozen=True)
class Step:
    """A server, and why it is to be restarted; without a reason it is as wanted, or is left alone."""

    server: str
    state: str
    reasons: tuple[str, ...]

    def row(self) -> dict[str, object]:
        action = "restart" if self.reasons else "none"
        return {"server": self.server, "state": self.state, "action": action, "reasons": list(self.reasons)}


class FleetApply:
    """Applies to the fleet that runs on a home.

    Args:
        home: Whose fleet.
        report: Takes lines for the operator.
    """

    def __init__(self, home: Home, report: Callable[[str], None]) -> None:
        self._home, self._report = home, report
        self._folder = FleetFolder(home)
        self._journal = ApplyJournal()

    def steps(self, placement: FleetPlacement | None = None, *, restart: bool = False) -> list[Step]:
        """Say what there is to do, in the order in which it would be done.

        Raises:
            NoFleetError: No fleet runs on the home.
        """
        state = self._folder.running()
        journal = self._journal_of(state, restart)
        placed = FleetPlacement.read(self._folder.placement) if placement is None else placement
        return self._steps(state, placed, journal)

    @contextmanager
    def begun(self, placement: FleetPlacement | None, *, restart: bool) -> Iterator[None]:
        """Hold the fleet against other applies; what is wanted is written down before anything is done.

        Args:
            placement: What the servers are to hold from now on; None leaves that as it is.
            restart: Also restart servers that are as wanted.

        Raises:
            ConflictError: Another apply is at work.
            NoFleetError: No fleet runs on the home.
            NotWritableError: This user may not write in the fleet's folder.
            UnavailableError: The fleet runs on another machine.
        """
        require_here(self._folder.running())
        with self._folder.applying():
            state = self._folder.running()
            require_here(state)
            self._journal = self._journal_of(state, restart)
            if self._folder.journal.exists():
                self._report("going on with an apply that did not finish")
            with write_errors_are_clear(self._folder.path):
                if placement is not None:
                    placement.write(self._folder.placement)
                self._journal.write(self._folder.journal)
            yield

    def run(self, *, force: bool) -> list[str]:
        """Restart what is not as wanted, one server after the other; returns the restarted ones.

        Args:
            force: Drain a server even where it is the last one that is ready.

        Raises:
            ConflictError: Only one server is ready.
            UnavailableError: The registry is away, the fleet has ended, or a server does not come back.
        """
        self._say_what_stays(self._settled())
        restarted: Counter[str] = Counter()
        while (step := self._next_step()) is not None:
            if restarted[step.server] == _MOST_RESTARTS:
                raise ConflictError(f"{step.server} was restarted, and still: {', '.join(step.reasons)}")
            if self._take(step, force):
                restarted[step.server] += 1
        self._folder.journal.unlink(missing_ok=True)
        return list(restarted)

    def _journal_of(self, state: FleetState, restart: bool) -> ApplyJournal:
        left = ApplyJournal.read(self._folder.journal) or ApplyJournal()
        is_left = any(each.pid is not None and left.to_end.get(each.server) == each.pid for each in state.servers)
        if is_left or not restart:
            return left
        return ApplyJournal({each.server: each.pid for each in state.servers if each.pid is not None})

    def _next_step(self) -> Step | None:
        """The next server to restart, once no other one is on its way."""
        state = self._settled()
        steps = self._steps(state, FleetPlacement.read(self._folder.placement), self._journal)
        return next((step for step in steps if step.reasons), None)

    def _steps(self, state: FleetState, placed: FleetPlacement, journal: ApplyJournal) -> list[Step]:
        """Servers that answer nothing come first: to start them costs nobody an answer. Then those of the plan's steps.

        A root that is to move then stands on its new server before its old one gives it up, if an order allows that.
        """
        wanted = self._folder.wanted([each.server for each in state.servers], placed)
        steps = [Step(each.server, each.state, _reasons(each, wanted[each.server], journal)) for each in state.servers]
        turns = {server: turn for turn, server in enumerate(placed.order)}
        return sorted(
            steps, key=lambda step: (step.state == MemberState.READY, turns.get(step.server, len(placed.order)))
        )

    def _say_what_stays(self, state: FleetState) -> None:
        for each in state.servers:
            if each.state == MemberState.STOPPED:
                self._report(
                    f"{each.server} was drained and stays stopped; hplm fleet drain {each.server} --restart starts it"
                )

    def _take(self, step: Step, force: bool) -> bool:
        """Restart a server; false where somebody else has given an order just before, which is to be waited for."""
        self._require_registry(step.server)
        if step.state == MemberState.READY and not force:
            self._require_another(step.server)
        self._report(f"{step.server}: restarting ({', '.join(step.reasons)})")
        began = time.monotonic()
        try:
            undone = order(self._folder.running(), "restart", step.server, force=force)
        except BusyError:
            self._report(f"{step.server}: not yet, as another order is at work")
            time.sleep(_POLL_S)
            return False
        except UnavailableError as error:
            raise UnavailableError(f"{error}; when it is back, {_GO_ON}") from error
        try:
            entry = self._entry_after(step.server)
        except NoFleetError as error:
            reason = "; ".join(undone) or "for an unknown reason"
            raise UnavailableError(f"{step.server} did not come back, and the fleet has ended: {reason}") from error
        if entry.state != MemberState.READY:
            reason = entry.reason or "; ".join(undone) or entry.state
            without = f"hplm fleet drain {step.server} has it left out"
            raise UnavailableError(
                f"{step.server} did not come back, and the others go on: {reason}; {_GO_ON}, or {without}"
            )
        self._report(f"{step.server}: ready again after {time.monotonic() - began:.1f} s")
        for line in undone:
            self._report(f"{step.server}: {line}")
        return True

    def _entry_after(self, server: str) -> ServerEntry:
        """What the fleet says of a server that it has restarted."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            entry = next(each for each in self._settled().servers if each.server == server)
            if entry.state in ENDED or entry.state == MemberState.READY or time.monotonic() > end:
                return entry
            time.sleep(_POLL_S)

    def _settled(self) -> FleetState:
        """Wait for an order that is at work, perhaps that of an apply that was killed."""
        began = time.monotonic()
        while True:
            state = self._folder.running()
            busy = [f"{each.server} is {each.state}" for each in state.servers if each.state in _BUSY]
            if not busy and not state.is_ordering:
                return state
            require_alive(state)
            if time.monotonic() - began > state.order_limit_s:
                raise UnavailableError(f"the fleet is not done with another order{''.join(map(': {}'.format, busy))}")
            time.sleep(_POLL_S)

    def _require_another(self, server: str) -> None:
        """Wait a little for another server that answers while this one does not."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            servers = self._folder.running().servers
            if any(each.state == MemberState.READY and each.server != server for each in servers):
                return
            if len(servers) == 1 or time.monotonic() > end:
                raise ConflictError(f"{server} is the last server that is ready; --force restarts it all the same")
            time.sleep(_POLL_S)

    def _require_registry(self, server: str) -> None:
        """A server that is started without the registry does not come back, so none is stopped then."""
        try:
            Registry.open(self._home).close()
        except (HplmError, OSError) as error:
            raise UnavailableError(
                f"the registry is away, so {server} was not stopped: {error}; when it is back, {_GO_ON}"
            ) from error


def _reasons(entry: ServerEntry, wanted: StartedWith, journal: ApplyJournal) -> tuple[str, ...]:
    if entry.state == MemberState.STOPPED:
        return ()
    reasons = [f"it has failed: {entry.reason}"] if entry.state == MemberState.FAILED else []
    reasons += entry.started_with.changes_to(wanted)
    if not reasons and entry.pid is not None and journal.to_end.get(entry.server) == entry.pid:
        reasons.append("as asked")
    return tuple(reasons)
