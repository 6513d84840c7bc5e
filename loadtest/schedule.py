"""A load drawn before anything is sent: who asks what when, as columns."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hplm_client import Request
from loadtest.texts import segments, tokens_of

Indices = NDArray[np.int64]


class Row(NamedTuple):
    """One request as planned: when, from the start of the load, and its deadline, from that moment.

    Without `tokens` its words and the two special tokens are counted.
    """

    at_s: float
    hplm: str
    text: str
    deadline_ms: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Schedule:
    """Rows as columns; times ascend.

    - `hplm_of`, `text_of`: indices into the two tables.
    - `deadlines_ms`: 0 for a row without one; None where no row has one.
    - `pairs`: the hPLMs that read two segments; their texts are cut by `segments`.
    - `labels`: of each text the right one, None where it is not known; empty where none is.
    - `levels`: the levels that rows ask for; None leaves that to the server.
    - `level_of`: indices into them; None where all rows ask for the first.
    - `numbers`: the rows' indices in the whole load, of which this may be a share.

    Shape: [rows] each.
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
    labels: tuple[str | None, ...] = ()
    levels: tuple[str | None, ...] = (None,)
    level_of: Indices | None = None

    def __post_init__(self) -> None:
        if not len(self.numbers):
            object.__setattr__(self, "numbers", np.arange(len(self.times_s)))

    def __len__(self) -> int:
        return len(self.times_s)

    @classmethod
    def of(cls, rows: Iterable[Row], pairs: frozenset[str] = frozenset()) -> Schedule:
        """The schedule of rows in any order; row k of the schedule is the k-th by time, equal times as given."""
        ordered = sorted(rows, key=lambda row: row.at_s)
        hplms = {hplm: index for index, hplm in enumerate(dict.fromkeys(row.hplm for row in ordered))}
        texts = {text: index for index, text in enumerate(dict.fromkeys(row.text for row in ordered))}
        return cls(
            np.array([row.at_s for row in ordered], np.float64),
            np.array([hplms[row.hplm] for row in ordered], np.int64),
            np.array([texts[row.text] for row in ordered], np.int64),
            np.array([tokens_of(row.text) if row.tokens is None else row.tokens for row in ordered], np.int64),
            np.array([row.deadline_ms or 0 for row in ordered], np.int64),
            tuple(hplms),
            tuple(texts),
            pairs,
        )

    @property
    def end_s(self) -> float:
        return float(self.times_s[-1]) if len(self) else 0.0

    def deadline_ms(self, row: int) -> int | None:
        return None if self.deadlines_ms is None else int(self.deadlines_ms[row]) or None

    def label(self, row: int) -> str | None:
        """The right label of a row's text, if it is known."""
        return self.labels[int(self.text_of[row])] if self.labels else None

    def level(self, row: int) -> str | None:
        return self.levels[0 if self.level_of is None else int(self.level_of[row])]

    def request(self, row: int, deadline_ms: int | None) -> Request:
        """Make the SDK's request of a row, with the rest of its deadline."""
        hplm = self.hplms[int(self.hplm_of[row])]
        text = self.texts[int(self.text_of[row])]
        if hplm in self.pairs:
            return Request(hplm, *segments(text), deadline_ms=deadline_ms, level=self.level(row))
        return Request(hplm, text, deadline_ms=deadline_ms, level=self.level(row))

    def share(self, index: int, shares: int) -> Schedule:
        """Every `shares`-th row from `index` on, so that all shares are equally busy at all times."""
        of = slice(index, None, shares)
        columns: dict[str, Any] = {name: getattr(self, name) for name in _COLUMNS}
        return replace(self, **{name: column[of] for name, column in columns.items() if column is not None})

    def to_bytes(self) -> bytes:
        """Serialise for another process or machine."""
        columns = {name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None}
        tables = json.dumps(
            {
                "hplms": self.hplms,
                "texts": self.texts,
                "pairs": sorted(self.pairs),
                "labels": self.labels,
                "levels": self.levels,
            }
        )
        packed = io.BytesIO()
        np.savez_compressed(packed, tables=np.frombuffer(tables.encode(), np.uint8), **columns)
        return packed.getvalue()

    @classmethod
    def from_bytes(cls, packed: bytes) -> Schedule:
        """Read what `to_bytes` gave, also that of earlier releases, where all rows had one level."""
        with np.load(io.BytesIO(packed), allow_pickle=False) as columns:
            tables: dict[str, Any] = json.loads(columns["tables"].tobytes())
            read: dict[str, Any] = {name: columns.get(name) for name in _COLUMNS}
        return cls(
            **read,
            hplms=tuple(tables["hplms"]),
            texts=tuple(tables["texts"]),
            pairs=frozenset(tables["pairs"]),
            labels=tuple(tables.get("labels", ())),
            levels=tuple(tables.get("levels", (tables.get("level"),))),
        )


_COLUMNS = ("times_s", "hplm_of", "text_of", "tokens", "deadlines_ms", "numbers", "level_of")
