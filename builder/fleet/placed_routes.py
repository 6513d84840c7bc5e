"""Keeps a fleet's gateway sending requests to servers that hold their roots, while hPLMs come and go.

Usage:
    routes = PlacedRoutes(home, front, held, report)
    routes.refresh()            # before the gateway starts, and whenever a server was started anew
    routes.start()
    routes.close()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from backends.errors import HplmError
from backends.held_roots import Roots
from backends.home import Home
from backends.registry.registry import Registry
from builder.fleet.front import Front
from builder.fleet.routing import Routing

_EVERY_S = 2.0


class PlacedRoutes:
    """Routes of one gateway. Where each server holds all roots it reads nothing and changes nothing.

    Args:
        home: Whose hPLMs are asked for.
        front: The gateway.
        held: Returns what each server holds, or is about to.
        report: Takes lines for the operator.
    """

    def __init__(
        self, home: Home, front: Front, held: Callable[[], Mapping[str, Roots]], report: Callable[[str], None]
    ) -> None:
        self._home, self._front, self._held, self._report = home, front, held, report
        self._made_of: tuple[int, Mapping[str, Roots]] | None = None
        self._made = Routing()
        self._complaint: str | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def refresh(self) -> None:
        """Route by what the servers hold now; what hinders that is reported once, and the old routes stay."""
        try:
            with self._lock:
                self._front.route(self._routing())
            self._complaint = None
        except (HplmError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._report(f"requests go where they went: {error}")

    def _routing(self) -> Routing:
        held = self._held()
        if all(roots is None for roots in held.values()):
            return Routing()
        with closing(Registry.open(self._home)) as registry:
            made_of = (registry.revision, held)
            if made_of != self._made_of:
                self._made = Routing.of(held, {entry.id: entry.domain.root for entry in registry.hplms()})
                self._made_of = made_of
        return self._made

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self.refresh()
