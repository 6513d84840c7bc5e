"""A TCP proxy that stands for a bad network: it passes bytes on, late, swallows them, or closes connections.

Usage:
    with Proxy("127.0.0.1", 5432) as proxy:
        proxy.delay_s = 5.0
        proxy.swallows = True
        proxy.closes = True
        proxy.mend()
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 1 << 16
_LOOK_EVERY_S = 0.02


class Proxy:
    """Passes connections to one port on to another. Faults hold for open connections, too, from now on.

    Attributes:
        delay_s: Time after which each answer of the server is passed on.
        swallows: Whether bytes are read and not passed on.
        closes: Whether connections are closed, also new ones.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.swallows = self.closes = False
        self._closed = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def mend(self) -> None:
        """End all faults, and the connections that suffered from them, as the restart of a server does."""
        self.delay_s, self.swallows, self.closes = 0.0, False, False
        self._drop()

    def close(self) -> None:
        self._closed.set()
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                if self.closes:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair, is_answer in (((client, server), False), ((server, client), True)):
                    threading.Thread(target=self._pass_on, args=(*pair, is_answer), name="proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(_CHUNK_BYTES):
                if self.closes:
                    break
                if is_answer:
                    self._wait()
                if not self.swallows:
                    target.sendall(content)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _wait(self) -> None:
        until_s = time.monotonic() + self.delay_s
        while time.monotonic() < until_s and self.delay_s:
            time.sleep(_LOOK_EVERY_S)
