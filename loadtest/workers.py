"""The processes that send a load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workers:
    """Local processes; or with `listen_port` as many workers on other machines, which connect to that port."""

    count: int = 1
    listen_port: int | None = None
