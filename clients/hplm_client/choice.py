"""Which of several servers is asked: a tenant's own as long as it works, and none that failed a moment ago."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from hplm_client.errors import (
    ClientError,
    ConnectionFailedError,
    ConnectionLostError,
    NotReadyError,
    RequestTimeoutError,
)

_FIRST_BAD_S, _LONGEST_BAD_S = 1.0, 10.0
_MOST_TENANTS = 10_000
_OF_A_BAD_SERVER = (ConnectionFailedError, ConnectionLostError, NotReadyError, RequestTimeoutError)


@dataclass
class _Health:
    bad_s: float = 0.0
    """How long the last failure made it bad."""
    bad_until_s: float = 0.0


class Choice:
    """Remembers which servers failed and where each tenant was answered. Safe between threads.

    A server that fails is bad for a second, then for two, up to ten; one answer makes it good. A bad one is asked only
    when all others have failed, too. Of tenants the last ten thousand are remembered.
    """

    def __init__(self, num_servers: int) -> None:
        self._health = [_Health() for _ in range(num_servers)]
        self._server_of: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def order(self, tenant: str | None = None) -> list[int]:
        """All servers: the tenant's first, then in the order given; bad ones last, by when they are good again."""
        now_s = time.monotonic()
        with self._lock:
            own = self._server_of.get(tenant) if tenant is not None else None
            return sorted(
                range(len(self._health)),
                key=lambda server: (max(now_s, self._health[server].bad_until_s), server != own),
            )

    def note_answer(self, tenant: str, server: int) -> None:
        with self._lock:
            self._health[server] = _Health()
            self._server_of[tenant] = server
            self._server_of.move_to_end(tenant)
            if len(self._server_of) > _MOST_TENANTS:
                self._server_of.popitem(last=False)

    def note_error(self, server: int, error: ClientError) -> None:
        """Note that a server failed, if the error says so: a rejected request does not."""
        if not isinstance(error, _OF_A_BAD_SERVER):
            return
        with self._lock:
            bad_s = min(_LONGEST_BAD_S, max(_FIRST_BAD_S, 2.0 * self._health[server].bad_s))
            self._health[server] = _Health(bad_s, time.monotonic() + bad_s)
