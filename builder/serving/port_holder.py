"""Who has a port: for messages, so as far as this user may see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil


def claim_name(port: int) -> str:
    """Name the socket in Linux's abstract namespace that claims a port."""
    return f"\0hplm-port-{port}"


def in_use_by(port: int) -> str:
    """Say who listens on a port or has claimed it, as ` by process 4711 (hplm)`; nothing where that is unknown."""
    with suppress(psutil.Error, OSError, StopIteration):
        pid = next(_holders(port))
        return f" by process {pid} ({psutil.Process(pid).name()})"
    return ""


def _holders(port: int) -> Iterator[int]:
    for listener in psutil.net_connections("tcp"):
        if listener.pid is not None and listener.status == psutil.CONN_LISTEN and listener.laddr[1:] == (port,):
            yield listener.pid
    claim = claim_name(port).replace("\0", "@")
    for claimed in psutil.net_connections("unix"):
        if claimed.pid is not None and str(claimed.laddr) == claim:
            yield claimed.pid
