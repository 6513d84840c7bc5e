"""Connections to PostgreSQL that no silent server holds. Only imported where the registry is in PostgreSQL."""

from __future__ import annotations

import time
from typing import Any, Self

from psycopg import Connection, OperationalError
from psycopg.abc import RV, PQGen

_LOOK_EVERY_S = 0.1


class ImpatientConnection(Connection[Any]):
    """Fails once the server has sent nothing for `patience_s` while a query waits for it, and is closed then.

    A server's own limits would not do: their errors do not arrive either while the network is away.
    """

    patience_s: float

    @classmethod
    def after(cls, patience_s: float, *arguments: Any, **named: Any) -> Self:
        connection: Self = cls.connect(*arguments, **named)
        connection.patience_s = patience_s
        return connection

    def wait(self, gen: PQGen[RV], interval: float = _LOOK_EVERY_S, timeout: float | None = None) -> RV:
        result: RV = super().wait(self._until_silent(gen), interval, timeout)
        return result

    def _until_silent(self, query: PQGen[RV]) -> PQGen[RV]:
        """Pass on what the socket is ready for; it is ready for nothing each time that the interval has passed."""
        heard_s = time.monotonic()
        try:
            wanted = next(query)
            while True:
                ready = yield wanted
                if ready:
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > self.patience_s:
                    self.close()
                    raise OperationalError(f"it has not answered for {self.patience_s:g} s")
                wanted = query.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result
