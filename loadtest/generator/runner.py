"""The Locust runner of a master that needs a certain number of workers."""

from __future__ import annotations

from typing import Any

from locust.env import Environment
from locust.runners import MasterRunner

from loadtest.generator.messages import MessageName


class LimitedRunner(MasterRunner):
    """Takes as many workers as a load needs, none after the load has begun, and rejects the others.

    Locust would divide the users of the load over all that connect, also over those that have no share of it; and a
    minute after it lost a worker it would start the load anew on the others, which would play their shares again.
    """

    def __init__(self, environment: Environment, host: str, port: int, limit: int) -> None:
        self._limit = limit
        self._senders: tuple[str, ...] = ()
        self._rejected: set[str] = set()
        self._has_started = False
        super().__init__(environment, host, port)

    def start(self, *arguments: Any, **options: Any) -> None:
        """Start the load; nothing happens where it has been started before."""
        if not self._has_started:
            self._has_started = True
            super().start(*arguments, **options)

    def choose_senders(self) -> tuple[str, ...]:
        """Return the IDs of the load's workers; every other one is rejected from now on."""
        self._senders = tuple([worker.id for worker in self.clients.ready][: self._limit])
        for worker in set(self.clients) - set(self._senders):
            del self.clients[worker]
            self._reject(worker)
        return self._senders

    def handle_message(self, client_id: str, msg: Any) -> None:
        if msg.type == "client_ready" and client_id not in self.clients and not self._has_room:
            # Acknowledged first: a worker hears nothing else before.
            self.send_message("ack", client_id=client_id)
            self._reject(client_id)
        elif client_id not in self._rejected:
            super().handle_message(client_id, msg)
        elif msg.type == "heartbeat":
            # Again, because a worker is ready a moment before it listens for this message.
            self._reject(client_id)

    @property
    def _has_room(self) -> bool:
        return not self._senders and self.worker_count < self._limit

    def _reject(self, worker: str) -> None:
        self._rejected.add(worker)
        reason = f"the load has all the workers that it needs, {self._limit}"
        self.send_message(MessageName.REJECTED, {"reason": reason}, worker)
