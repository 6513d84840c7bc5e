"""Who asks what when, drawn before anything is sent: a load's rows as columns."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Shape: [rows] each; times ascend from 0. `hplm_of` and `text_of` are indices into the two tables.

    `numbers` are the rows' places in the whole load, of which this may be a share.
    """

    times_s: NDArray[np.float64]
    hplm_of: Indices
    text_of: Indices
    tokens: Indices
    deadlines_ms: Indices | None
    hplms: tuple[str, ...]
    texts: tuple[str, ...]
    pairs: frozenset[str] = frozenset()
    numbers: Indices = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if not len(self.numbers):
            object.__setattr__(self, "numbers", np.arange(len(self.times_s)))

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def end_s(self) -> float:
        return float(self.times_s[-1]) if len(self) else 0.0

    def deadline_ms(self, row: int) -> int | None:
        return None if self.deadlines_ms is None else int(self.deadlines_ms[row])

    def share(self, index: int, shares: int) -> Schedule:
        """Every `shares`-th row from `index` on, so that all shares are equally busy at all times."""
        of = slice(index, None, shares)
        return Schedule(
            self.times_s[of],
            self.hplm_of[of],
            self.text_of[of],
            self.tokens[of],
            None if self.deadlines_ms is None else self.deadlines_ms[of],
            self.hplms,
            self.texts,
            self.pairs,
            self.numbers[of],
        )

    def to_bytes(self) -> bytes:
        """For the way to another process or machine."""
        columns = {name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None}
        tables = json.dumps({"hplms": self.hplms, "texts": self.texts, "pairs": sorted(self.pairs)})
        packed = io.BytesIO()
        np.savez_compressed(packed, tables=np.frombuffer(tables.encode(), np.uint8), **columns)
        return packed.getvalue()

    @classmethod
    def from_bytes(cls, packed: bytes) -> Schedule:
        with np.load(io.BytesIO(packed), allow_pickle=False) as columns:
            tables: dict[str, Sequence[str]] = json.loads(columns["tables"].tobytes())
            read: dict[str, Any] = {name: columns.get(name) for name in _COLUMNS}
        return cls(
            **read,
            hplms=tuple(tables["hplms"]),
            texts=tuple(tables["texts"]),
            pairs=frozenset(tables["pairs"]),
        )


_COLUMNS = ("times_s", "hplm_of", "text_of", "tokens", "deadlines_ms", "numbers")
