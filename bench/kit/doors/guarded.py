"""Throughput with tokens and quotas over that without, thousands of tenants, two servers by turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.registry.quotas import Quota
from backends.scheduling.tenants import tenant_of
from bench.kit.bulk import NewToken, register_quotas, register_tokens
from bench.kit.saturation import HplmText, draw, saturate
from bench.kit.scratch_home import copied_home
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import MINILM, tenant_home

_TOKENS = 20
_EDGE_ROWS = 64
_WIDE = Quota(weight=1.0, rows_per_s=1e6, bytes_per_s=1e9, waiting_rows=100_000)
"""So that each row is counted and none is rejected."""


@dataclass(frozen=True)
class GuardedSettings:
    """`askers` of the tenants ask; all are registered, with tokens and quotas."""

    tenants: int
    askers: int
    rows: int
    pairs: int
    in_flight: int = 64


def guarded_over_open(settings: GuardedSettings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Measure both in turn with the same rows, in an order that changes from pair to pair."""
    rng = np.random.default_rng(seed)
    with tenant_home(MINILM, settings.tenants, (_TOKENS,), seed) as open_home:
        guarded_home = copied_home(open_home.home.path, open_home.home.path.with_name("guarded"))
        tokens = _guard(guarded_home, open_home.hplms)
        guarded = Serving("guarded", environment={AUTH_VARIABLE: Auth.TOKENS.value})
        askers = [open_home.hplms[number] for number in rng.permutation(settings.tenants)[: settings.askers]]
        texts = open_home.texts[_TOKENS]
        with served(open_home.home, Serving("open")) as without, served(guarded_home, guarded) as with_tokens:
            ways = {False: (without.grpc_url, None), True: (with_tokens.grpc_url, tokens)}

            def rows_per_s(is_guarded: bool, rows: Sequence[HplmText]) -> float:
                url, shown = ways[is_guarded]
                return saturate(url, rows, settings.in_flight, tokens=shown).rows_per_s(_EDGE_ROWS)

            for is_guarded in ways:  # the first rows of a tenant find cold weights
                rows_per_s(is_guarded, [(hplm, texts[0]) for hplm in askers])
            pairs = []
            for number in range(settings.pairs):
                rows = draw(askers, texts, settings.rows, rng)
                pairs.append({first: rows_per_s(first, rows) for first in (number % 2 == 0, number % 2 == 1)})
    ratios = [pair[True] / pair[False] for pair in pairs]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    figures = {
        "guarded_over_open": float(middle),
        "guarded_over_open_low": float(low),
        "guarded_over_open_high": float(high),
    }
    told = [
        {"what": f"rows a second, pair {number + 1}", "open": pair[False], "guarded": pair[True], "ratio": ratio}
        for number, (pair, ratio) in enumerate(zip(pairs, ratios, strict=True))
    ]
    return figures, told


def _guard(home: Home, hplms: Sequence[str]) -> dict[str, str]:
    """Give each tenant two tokens, of which it shows one, and quotas."""
    tenants = sorted({tenant_of(hplm) for hplm in hplms})
    texts = register_tokens(home, [NewToken(tenant) for tenant in tenants for _ in range(2)])
    register_quotas(home, tenants, _WIDE)
    return dict(zip(tenants, texts[::2], strict=True))
