"""What happens to servers of a simulated fleet beside requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from backends.errors import InvalidArgumentError
from workload.forms import read_duration_s

NOTICED_US = 500_000
"""Two of the gateway's health checks in a row, as `builder/fleet/gateway_config.py` has them."""


@dataclass(frozen=True)
class Happening:
    """A server is out from one moment to another, or for good.

    Attributes:
        server: Its index.
        at_us: From when on.
        back_us: When another one, which knows nothing, is ready in its place; None for never.
        noticed_us: So long after `at_us` the gateway asks it no more.
    """

    server: int
    at_us: int
    back_us: int | None = None
    noticed_us: int = NOTICED_US

    def __post_init__(self) -> None:
        if self.server < 0 or self.at_us < 0 or self.noticed_us < 0:
            raise InvalidArgumentError("a server's number, and when it is out, are 0 or more")
        if self.back_us is not None and self.back_us < self.at_us + self.noticed_us:
            raise InvalidArgumentError("a server is back at the earliest when the gateway has noticed that it is out")


class Loss(Happening):
    """It dies at once. What it held, or is sent until that is noticed, goes to another server, once."""


class Drain(Happening):
    """It answers all that it holds, and is asked for a moment yet."""


KindT = TypeVar("KindT", bound=Happening)


def read_happening(kind: type[KindT], text: str, option: str) -> KindT:
    """Read `2@30s`, or `2@30s-60s` of a server that is back then; servers are numbered from 1.

    Raises:
        InvalidArgumentError: It is none.
        WorkloadError: A time is none.
    """
    number, at, times = text.partition("@")
    begin, _, end = times.partition("-")
    if not (at and number.isdecimal() and number != "0"):
        raise InvalidArgumentError(f"{option}: {text!r} is not a server and a time, such as 2@30s or 2@30s-60s")
    at_s, back_s = read_duration_s(begin, option), read_duration_s(end, option) if end else math.inf
    return kind(int(number) - 1, round(1e6 * at_s), None if back_s == math.inf else round(1e6 * back_s))
