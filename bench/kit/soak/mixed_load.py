"""Requests of all kinds side by side, as long as is wanted: good, late and wrong ones, and some that are given up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hplm_client import Answer, AsyncHplmClient, ClientError

_LONGEST_DEADLINE_MS = 200
_LONGEST_PATIENCE_S = 0.02


@dataclass(frozen=True)
class MixedLoad:
    """Callers side by side, each of whom asks again as soon as it has heard, or later.

    Args:
        kinds: Shares that sum to 1. `passing` asks for hPLMs that come and go.
        is_right: Whether an answer is what it should be.
        rate_per_s: Of all callers together, at random moments; what nobody is free to ask is left out. None: no pauses.
    """

    grpc_url: str
    http_url: str
    hplms: Sequence[str]
    texts: Sequence[str]
    callers: int
    kinds: Mapping[str, float]
    passing: Sequence[str]
    is_right: Callable[[Answer], bool]
    rate_per_s: float | None = None

    async def play(self, duration_s: float, seed: int) -> Counter[str]:
        """What became of all, by kind and outcome."""
        outcomes: Counter[str] = Counter()
        ends_at = time.monotonic() + duration_s
        await self.play_while(lambda: time.monotonic() < ends_at, outcomes, seed)
        return outcomes

    async def play_while(self, goes_on: Callable[[], bool], outcomes: Counter[str], seed: int) -> None:
        """Count into `outcomes` as they come."""
        async with (
            AsyncHplmClient(self.grpc_url, "grpc", retries=0) as grpc,
            AsyncHplmClient(self.http_url, "http", retries=0) as http,
            asyncio.TaskGroup() as group,
        ):
            for caller in range(self.callers):
                rng = np.random.default_rng((seed, caller))
                group.create_task(self._ask_while(goes_on, grpc, http, rng, outcomes))

    async def _ask_while(
        self,
        goes_on: Callable[[], bool],
        grpc: AsyncHplmClient,
        http: AsyncHplmClient,
        rng: np.random.Generator,
        outcomes: Counter[str],
    ) -> None:
        kinds, shares = list(self.kinds), list(self.kinds.values())
        due_s = time.monotonic()
        while goes_on():
            if self.rate_per_s is not None:
                due_s = max(due_s + rng.exponential(self.callers / self.rate_per_s), time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
            kind = kinds[int(rng.choice(len(kinds), p=shares))]
            outcome = await self._ask(kind, http if kind == "http" else grpc, rng)
            outcomes[f"{kind}_{outcome}"] += 1

    async def _ask(self, kind: str, client: AsyncHplmClient, rng: np.random.Generator) -> str:
        hplms = {"unknown": ("absent/none",), "passing": self.passing}.get(kind, self.hplms)
        hplm = hplms[int(rng.integers(len(hplms)))]
        text = self.texts[int(rng.integers(len(self.texts)))]
        deadline_ms = int(rng.integers(1, _LONGEST_DEADLINE_MS)) if kind == "deadline" else None
        patience_s = float(rng.uniform(0, _LONGEST_PATIENCE_S)) if kind == "impatient" else None
        try:
            answer = await asyncio.wait_for(client.infer(hplm, text, deadline_ms=deadline_ms), patience_s)
        except TimeoutError:
            return "given_up"
        except ClientError as error:
            return error.code.lower()
        return "answered" if self.is_right(answer) else "wrong"
