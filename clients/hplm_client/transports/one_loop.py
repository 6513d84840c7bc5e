"""The event loop to which a client's connections belong."""

from __future__ import annotations

import asyncio

from hplm_client.errors import ClosedError


class OneLoop:
    """The loop in which `check` was called first."""

    def __init__(self) -> None:
        self._first: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Check that no other loop runs now.

        Raises:
            ClosedError: Another one does.
        """
        running = asyncio.get_running_loop()
        if self._first is None:
            self._first = running
        elif self._first is not running:
            raise ClosedError("this client belongs to the event loop in which it was first used: make one for each")
