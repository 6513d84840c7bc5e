"""Requests of all kinds side by side, as long as is wanted: good, late and wrong ones, and some that are cancelled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hplm_client import AsyncHplmClient, ClientError

_KINDS = {"grpc": 0.4, "http": 0.2, "deadline": 0.15, "cancelled": 0.15, "unknown": 0.1}
"""And how often each is asked."""
_LONGEST_DEADLINE_MS = 40
_LONGEST_PATIENCE_S = 0.02


@dataclass(frozen=True)
class MixedLoad:
    """So many callers at once, each of whom asks again as soon as it has heard."""

    grpc_url: str
    http_url: str
    hplms: Sequence[str]
    texts: Sequence[str]
    callers: int

    async def play(self, duration_s: float, seed: int) -> Counter[str]:
        """What became of all, by kind and outcome."""
        outcomes: Counter[str] = Counter()
        ends_at = time.monotonic() + duration_s
        async with (
            AsyncHplmClient(self.grpc_url, "grpc", retries=0) as grpc,
            AsyncHplmClient(self.http_url, "http", retries=0) as http,
            asyncio.TaskGroup() as group,
        ):
            for caller in range(self.callers):
                rng = np.random.default_rng((seed, caller))
                group.create_task(self._ask_until(ends_at, grpc, http, rng, outcomes))
        return outcomes

    async def _ask_until(
        self,
        ends_at: float,
        grpc: AsyncHplmClient,
        http: AsyncHplmClient,
        rng: np.random.Generator,
        outcomes: Counter[str],
    ) -> None:
        kinds = list(_KINDS)
        while time.monotonic() < ends_at:
            kind = kinds[int(rng.choice(len(kinds), p=list(_KINDS.values())))]
            outcome = await self._ask(kind, http if kind == "http" else grpc, rng)
            outcomes[f"{kind}_{outcome}"] += 1

    async def _ask(self, kind: str, client: AsyncHplmClient, rng: np.random.Generator) -> str:
        hplm = "absent/none" if kind == "unknown" else self.hplms[int(rng.integers(len(self.hplms)))]
        text = self.texts[int(rng.integers(len(self.texts)))]
        deadline_ms = int(rng.integers(1, _LONGEST_DEADLINE_MS)) if kind == "deadline" else None
        patience_s = float(rng.uniform(0, _LONGEST_PATIENCE_S)) if kind == "cancelled" else None
        try:
            # A caller that loses patience cancels its request.
            await asyncio.wait_for(client.infer(hplm, text, deadline_ms=deadline_ms), patience_s)
        except TimeoutError:
            return "given_up"
        except ClientError as error:
            return error.code.lower()
        return "answered"
