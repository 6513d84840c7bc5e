"""What `bench.fuzz` was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The options that all parts take.

    Attributes:
        cases: Number of cases of the part; None: its own, by `is_quick`.
        only: One target of the part; None: all.
    """

    seed: int
    is_quick: bool
    cases: int | None = None
    only: str | None = None
