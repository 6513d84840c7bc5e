"""A server's word to the registry: from which position on it may still serve."""

from __future__ import annotations

import logging
import math
import secrets
import socket
import time
from collections import deque

from backends.errors import HplmError
from backends.process_id import ProcessId
from backends.registry.position import START, Position
from backends.registry.servers import TOLD_EVERY_S, ServerEntry, ServerTable

LOGGER = logging.getLogger(__name__)
_TOLD_ANEW_S = 10.0
"""A new position is told after this time at the earliest, so that a registry of many servers has little to write."""
_ID_BITS = 62


class PositionReport:
    """Tells the position that a snapshot left `kept_s` ago: it remembers for so long what was live there.

    A server whose registry cannot be written to serves all the same; `hplm gc` then does not know of it.
    """

    def __init__(self, servers: ServerTable, instance: str, serves_for_s: float, kept_s: float) -> None:
        self._servers = servers
        self._id = 1 + secrets.randbits(_ID_BITS)
        self._name = f"{socket.gethostname()}/{instance}"
        self._process = ProcessId.own()
        self._serves_for_s = serves_for_s
        self._kept_s = kept_s
        self._now = self._told = START
        self._told_s = -math.inf
        self._left: deque[tuple[float, Position]] = deque()
        """Positions that the snapshot has left, and when; the oldest first."""
        self._is_told = True

    def begin(self) -> None:
        """Ask for all versions to be kept until the registry is read."""
        self._tell(START)
        self._told_s = -math.inf

    def note(self, position: Position) -> None:
        """Note where the snapshot stands; tell the registry, where that is due."""
        now_s = time.monotonic()
        if position != self._now and self._now != START:
            self._left.append((now_s, self._now))
        self._now = position
        while self._left and now_s - self._left[0][0] >= self._kept_s:
            self._left.popleft()
        in_use = self._left[0][1] if self._left else position
        if now_s - self._told_s >= (TOLD_EVERY_S if in_use == self._told or not self._is_told else _TOLD_ANEW_S):
            self._tell(in_use)

    def end(self) -> None:
        """Say that this process serves no more."""
        try:
            self._servers.forget(self._id)
        except HplmError as error:
            LOGGER.warning("the registry could not be told that this server ends: %s", error)

    def _tell(self, position: Position) -> None:
        self._told, self._told_s = position, time.monotonic()
        try:
            self._servers.tell(
                ServerEntry(self._id, self._name, self._process, position, time.time(), self._serves_for_s)
            )
        except HplmError as error:
            if self._is_told:
                LOGGER.warning("the registry cannot be told what this server serves, so that gc keeps it: %s", error)
            self._is_told = False
        else:
            self._is_told = True
