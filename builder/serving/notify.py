"""What a service of systemd's `Type=notify` tells it; nothing where another program has started it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """Speaks the protocol of sd_notify(3): datagrams to the socket that `NOTIFY_SOCKET` of the environment names."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._ping_every_s = int(microseconds) / 3e6 if microseconds.isdigit() else None
        self._pinged_s = 0.0

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Say so as often as the watchdog of systemd wants to hear it; called more often than that."""
        if self._ping_every_s is not None and time.monotonic() - self._pinged_s >= self._ping_every_s:
            self._pinged_s = time.monotonic()
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        name = self._address.replace("@", "\0", 1) if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(state.encode(), name)
