"""What became of the requests of a fleet, together and by server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.placement.simulated_load import Int64
from builder.placement.simulation_log import Batches, Simulation


@dataclass(frozen=True, eq=False)
class FleetSimulation:
    """A load's way through a fleet.

    Attributes:
        together: Of all requests, wherever they were answered; those that are lost are neither answered nor rejected.
        batches: Of each server.
        routed: How many requests each server got, those of its second chance among them.
        lost: Requests whose server died and that no other one has answered or rejected.
        num_retried: Requests that another server was asked for.
    """

    together: Simulation
    batches: Mapping[str, Batches]
    routed: Mapping[str, int]
    lost: Int64
    num_retried: int

    @property
    def attainment(self) -> float:
        return self.together.attainment

    def busy(self, server: str) -> float:
        """Return the share of the time until the last answer of all in which a server ran batches."""
        ended_us = max((int(each.ended_us[-1]) for each in self.batches.values() if len(each.ended_us)), default=0)
        own = self.batches[server]
        return float((own.ended_us - own.started_us).sum() / ended_us) if ended_us else 0.0

    def figures(self) -> dict[str, float]:
        """Return those of all servers together; `busy` is the mean of theirs."""
        found = self.together.figures()
        if "busy" in found:
            found["busy"] = sum(map(self.busy, self.batches)) / len(self.batches)
        return {**found, "lost": len(self.lost), "retried": self.num_retried}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each server."""
        return [
            {
                "server": name,
                "requests": self.routed[name],
                "batches": len(batches.rows),
                "rows_per_batch": float(batches.rows.mean()) if len(batches.rows) else 0.0,
                "busy": self.busy(name),
            }
            for name, batches in self.batches.items()
        ]
