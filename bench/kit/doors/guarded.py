"""Throughput with tokens and quotas over that without, thousands of tenants, two servers by turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.registry.quotas import Quota
from backends.scheduling.fair_share import tenant_of
from bench.kit.bulk import NewToken, register_quotas, register_tokens
from bench.kit.saturation import draw, saturate
from bench.kit.scratch_home import copied_home
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import MINILM, tenant_home

_TOKENS = 20
_EDGE_ROWS = 64
_WIDE = Quota(weight=1.0, rows_per_s=1e6, bytes_per_s=1e9, waiting_rows=100_000)
"""So that each row is counted and none is rejected."""


@dataclass(frozen=True)
class GuardedSettings:
    tenants: int
    rows: int
    pairs: int
    in_flight: int = 64


def guarded_over_open(settings: GuardedSettings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    with tenant_home(MINILM, settings.tenants, (_TOKENS,), seed) as open_home:
        guarded_home = copied_home(open_home.home.path, open_home.home.path.with_name("guarded"))
        tokens = _guard(guarded_home, open_home.hplms)
        guarded = Serving("guarded", environment={AUTH_VARIABLE: Auth.TOKENS.value})
        with served(open_home.home, Serving("open")) as without, served(guarded_home, guarded) as with_tokens:

            def rows_per_s(is_guarded: bool) -> float:
                server, shown = (with_tokens, tokens) if is_guarded else (without, None)
                rows = draw(open_home.hplms, open_home.texts[_TOKENS], settings.rows, rng)
                return saturate(server.grpc_url, rows, settings.in_flight, tokens=shown).rows_per_s(_EDGE_ROWS)

            for is_guarded in (True, False):
                rows_per_s(is_guarded)  # the first rows find cold weights
            pairs = [_pair(rows_per_s, number) for number in range(settings.pairs)]
    ratios = sorted(with_them / without_them for with_them, without_them in pairs)
    figures = {
        "guarded_over_open": median(ratios),
        "guarded_over_open_low": ratios[len(ratios) // 4],
        "guarded_over_open_high": ratios[-1 - len(ratios) // 4],
    }
    rows = [
        {
            "what": f"rows a second, pair {number + 1}",
            "open": without_them,
            "guarded": with_them,
            "ratio": with_them / without_them,
        }
        for number, (with_them, without_them) in enumerate(pairs)
    ]
    return figures, rows


def _pair(rows_per_s: Any, number: int) -> tuple[float, float]:
    """Measure both, in an order that changes from pair to pair; the guarded one is named first."""
    first = number % 2 == 0
    measured = {is_guarded: rows_per_s(is_guarded) for is_guarded in (first, not first)}
    return measured[True], measured[False]


def _guard(home: Home, hplms: Sequence[str]) -> dict[str, str]:
    """Give each tenant two tokens, of which it shows one, and quotas."""
    tenants = sorted({tenant_of(hplm) for hplm in hplms})
    texts = register_tokens(home, [NewToken(tenant) for tenant in tenants for _ in range(2)])
    register_quotas(home, tenants, _WIDE)
    return dict(zip(tenants, texts[::2], strict=True))
