"""What a server of a fleet does."""

from __future__ import annotations

from enum import StrEnum


class MemberState(StrEnum):
    """What a server does, in the words of `hplm fleet status`."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = (MemberState.FAILED, MemberState.STOPPED)
