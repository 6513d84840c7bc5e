"""What a server tells at its metrics endpoint."""

from __future__ import annotations

import urllib.request

from builder.serving import TritonServer

_TIMEOUT_S = 10.0


def figure_of(server: TritonServer, name: str) -> float:
    """Summed over its labels, or those that `name` leaves open; the upper half's are two seconds old at most."""
    with urllib.request.urlopen(server.metrics_url, timeout=_TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
