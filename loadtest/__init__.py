"""Load tests over the SDK: loads become schedules, are played by Locust, kept request by request, and reported.

`HplmUser` is for locustfiles of one's own; see `loadtest/examples/locustfile.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtest.users.base import HplmUser

__all__ = ["HplmUser"]


def __getattr__(name: str) -> Any:
    """Import Locust, which patches sockets and threads, only for those who ask for its users."""
    if name == "HplmUser":
        from loadtest.users.base import HplmUser

        return HplmUser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
