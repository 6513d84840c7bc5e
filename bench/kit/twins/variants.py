"""The ways to run servers that a simulation is compared with."""

from __future__ import annotations

import os
from dataclasses import dataclass

from builder.placement.simulated_stages import WHOLE, Stages

_SERVING_THREADS = 4
"""What wants a core beside computing, where all are busy: clients, Triton, the lower model, the upper one's threads."""


@dataclass(frozen=True)
class Variant:
    """One way.

    Attributes:
        name: As figures have it.
        question: What it shows.
        servers: How many; several stand behind the gateway.
        is_isolated: Whether the engine has a core of its own, and all else the other ones.
        is_paced: Whether the engine waits instead of computing.
        stages: In how many stages the engine's layers are cut, each on cores of its own.
    """

    name: str
    question: str
    servers: int = 1
    is_isolated: bool = False
    is_paced: bool = False
    stages: Stages = WHOLE

    @property
    def threads(self) -> int:
        """Threads that compute in each server."""
        cores = os.cpu_count() or 1
        if self.is_isolated:
            return 1
        return cores if self.servers == 1 else max(1, cores // self.servers)

    @property
    def most_stretch(self) -> float:
        """What a batch takes, where everything wants the cores, over what it takes on free ones."""
        return (self.threads + _SERVING_THREADS) / self.threads


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("shared", "one server, clients on the same cores"),
        Variant("isolated", "one server, its engine alone on a core", is_isolated=True),
        Variant("two", "two servers behind the gateway, a core each, clients and gateway on both", servers=2),
        Variant("stages", "one server of two stages, a core each, clients on both", stages=Stages.even(2)),
        Variant("paced_1", "one server that waits instead of computing", is_paced=True),
        Variant("paced_4", "four servers that wait instead of computing", servers=4, is_paced=True),
        Variant("paced_8", "eight servers that wait instead of computing", servers=8, is_paced=True),
    )
}
