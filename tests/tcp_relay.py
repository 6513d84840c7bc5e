"""A port in front of another one whose connections can be cut, as those of a process that dies."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_MOST_BYTES = 1 << 16


class TcpRelay:
    """Listens on a free port of this machine from the start on, or on the given socket; `close` ends it."""

    def __init__(self, port: int, listener: socket.socket | None = None) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128) if listener is None else listener
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """End all open connections."""
        with self._lock:
            cut, self._open = self._open, set()
        for each in cut:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # once the listener is closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                with self._lock:
                    self._open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(_MOST_BYTES):
                target.sendall(content)
        with self._lock:
            self._open -= {source, target}
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
