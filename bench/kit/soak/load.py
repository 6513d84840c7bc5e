"""The mixed load of a soak: its rate, and what its outcomes say of the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.kit.soak.mixed_load import MixedLoad
from bench.kit.until_stopped import GoesOn, Tell

_TOLD_EVERY_S = 1.0
CAPACITY_KINDS: Mapping[str, float] = {"grpc": 2 / 3, "http": 1 / 3}
"""What the server is full of while its capacity is measured: every request is answered, and computed."""
KINDS: Mapping[str, float] = {
    "grpc": 0.35,
    "http": 0.2,
    "deadline": 0.15,
    "impatient": 0.15,
    "unknown": 0.05,
    "passing": 0.1,
}
_EXPECTED: Mapping[str, frozenset[str]] = {
    "grpc": frozenset(("answered",)),
    "http": frozenset(("answered",)),
    "deadline": frozenset(("answered", "unavailable")),
    "impatient": frozenset(("answered", "given_up")),
    "unknown": frozenset(("not_found",)),
    "passing": frozenset(("answered", "not_found")),
}
_WRONG = "wrong"


@dataclass(frozen=True)
class ToldLoad:
    """A mixed load that tells all outcomes since its beginning, each second."""

    load: MixedLoad
    seed: int

    def play(self, goes_on: GoesOn, tell: Tell) -> None:
        asyncio.run(self._play(goes_on, tell))

    async def _play(self, goes_on: GoesOn, tell: Tell) -> None:
        outcomes = Counter[str]()
        playing = asyncio.create_task(self.load.play_while(goes_on, outcomes, self.seed))
        while not playing.done():
            await asyncio.wait([playing], timeout=_TOLD_EVERY_S)
            tell(outcomes)
        playing.result()


def capacity_per_s(load: MixedLoad, duration_s: float, seed: int) -> float:
    """Answers a second while all callers ask without pauses."""
    full = replace(load, kinds=CAPACITY_KINDS, rate_per_s=None)
    outcomes = asyncio.run(full.play(duration_s, seed))
    return (outcomes["grpc_answered"] + outcomes["http_answered"]) / duration_s


def num_failed(outcomes: Mapping[str, int]) -> int:
    """Count the outcomes that a server which is well does not give."""
    return sum(count for (_, outcome, is_expected), count in _judged(outcomes) if not is_expected and outcome != _WRONG)


def num_wrong(outcomes: Mapping[str, int]) -> int:
    """Count the answers of others than the version that they carry."""
    return sum(count for (_, outcome, _), count in _judged(outcomes) if outcome == _WRONG)


def _judged(outcomes: Mapping[str, int]) -> list[tuple[tuple[str, str, bool], int]]:
    parts = [(name.partition("_"), count) for name, count in outcomes.items()]
    return [((kind, outcome, outcome in _EXPECTED[kind]), count) for (kind, _, outcome), count in parts]
