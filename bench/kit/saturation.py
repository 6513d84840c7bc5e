"""Clients that keep a server full, one row a request: how many rows a second come back, and what asking costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from backends.scheduling.tenants import tenant_of
from bench.kit.triton_client import open_triton
from builder.export.model_names import ENSEMBLE
from hplm_client import Request
from loadtest.in_process import Played, play
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target

HplmText = tuple[str, str]
LONGEST_ANSWER_S = 300.0
"""A server that is kept full answers within seconds; one that has lost a request never does."""


def saturate(
    url: str,
    rows: Sequence[HplmText],
    in_flight: int,
    model: str = ENSEMBLE,
    level: str | None = None,
    starts_at: float | None = None,
    tokens: Mapping[str, str] | None = None,
) -> Played:
    """Ask all rows, so many at a time, with the tokens of their tenants if there are some; every one must be answered.

    Times are seconds since `starts_at`, a moment of the monotonic clock; by default since the first row is sent.
    """
    schedule = Schedule.of(Row(0.0, hplm, text) for hplm, text in rows)
    open_ask = partial(open_triton, model=model, options=partial(_options, level, tokens or {}))
    target = Target(url, timeout_s=LONGEST_ANSWER_S)
    played = play(target, schedule, in_flight, open_ask=open_ask, starts_at=starts_at)
    played.require_all_answered()
    return played


def _options(level: str | None, tokens: Mapping[str, str], request: Request) -> dict[str, Any]:
    token = tokens.get(tenant_of(request.hplm))
    parameters = {name: value for name, value in (("level", level), ("tenant_token", token)) if value is not None}
    return {"parameters": parameters} if parameters else {}


def draw(hplms: Sequence[str], texts: Sequence[str], count: int, rng: np.random.Generator) -> list[HplmText]:
    """Rows of hPLMs and texts drawn uniformly."""
    keys, numbers = rng.integers(len(hplms), size=count), rng.integers(len(texts), size=count)
    return [(hplms[key], texts[number]) for key, number in zip(keys, numbers, strict=True)]
