"""What a server tells at its metrics endpoint."""

from __future__ import annotations

import urllib.request

from builder.export.model_names import LOWER, UPPER
from builder.serving import TritonServer

_TIMEOUT_S = 10.0
_ENDED = "nv_inference_request_success{model="
"""Triton counts a request that a Python model answers with an error among these too."""


def figure_of(server: TritonServer, name: str) -> float:
    """Summed over its labels, or those that `name` leaves open; the upper half's are two seconds old at most."""
    with urllib.request.urlopen(server.metrics_url, timeout=_TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def rejected_by_lower(server: TritonServer) -> int:
    """Requests that `hplm_lower` has ended, and that so never came to `hplm_upper`."""
    lower, upper = (figure_of(server, f'{_ENDED}"{model}"') for model in (LOWER, UPPER))
    return round(lower - upper)
