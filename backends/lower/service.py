"""What `hplm_lower` does with a Triton batch: check every request, encode all rows together, fold them again.

A request that cannot be served gets its error in its place; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from backends.clock import now_us
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.home import Home
from backends.lower.half import LowerHalf, RootFront
from backends.plot.statistics import HitStatistics
from backends.plot.table import Table
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.wire import Half, Int64, Ticket, deadline_us, encode_tickets, fold_rows, parse_parameters

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextRequest:
    """One infer request as it arrived; `parameters` is Triton's JSON."""

    models: Sequence[bytes]
    texts: Sequence[bytes]
    parameters: str


@dataclass(frozen=True)
class HiddenRequest:
    """One request after the lower half.

    Shape:
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, 4]`.
    """

    hidden: Half
    tickets: Int64


@dataclass(frozen=True)
class _Row:
    entry: HplmEntry
    text: str
    deadline_us: int | None


@dataclass(frozen=True)
class _EncodedRow:
    hidden: Half
    ticket: Ticket


class LowerService:
    """Holds the tables of every domain that has been asked for; they are memory maps, so this costs little."""

    def __init__(self, home: Home, snapshot: RegistrySnapshot) -> None:
        self._home = home
        self._snapshot = snapshot
        self._fronts: dict[str, RootFront] = {}
        self._tables: dict[str, Table] = {}
        self._halves: dict[tuple[str, ...], LowerHalf] = {}
        self.statistics = HitStatistics()

    def warm_up(self) -> None:
        """Open what the live hPLMs need; what cannot be opened is an error of the requests that need it."""
        for entry in self._snapshot.live():
            try:
                self._half(entry.domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", entry.domain.label, error)

    def encode(self, requests: Sequence[TextRequest | HplmError]) -> list[HiddenRequest | HplmError]:
        """A request that could not even be read comes in as its error and goes out as it."""
        checked = [request if isinstance(request, HplmError) else self._check(request) for request in requests]
        rows = [row for one in checked if not isinstance(one, HplmError) for row in one]
        encoded = iter(self._encode_rows(rows))
        return [one if isinstance(one, HplmError) else _folded([next(encoded) for _ in one]) for one in checked]

    def _check(self, request: TextRequest) -> list[_Row] | HplmError:
        try:
            deadline = deadline_us(parse_parameters(request.parameters), now_us())
            return [
                _Row(self._snapshot.find(_decoded(model, "MODEL")), _checked_text(text), deadline)
                for model, text in zip(request.models, request.texts, strict=True)
            ]
        except Exception as error:
            return presentable(error)

    def _encode_rows(self, rows: Sequence[_Row]) -> list[_EncodedRow | HplmError]:
        """All rows of one domain go through its tables together."""
        places: dict[tuple[str, ...], list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row.entry.domain.folders, []).append(place)
        encoded: dict[int, _EncodedRow | HplmError] = {}
        for of_domain in places.values():
            results = self._encode_domain([rows[place] for place in of_domain])
            encoded |= dict(zip(of_domain, results, strict=True))
        return [encoded[place] for place in range(len(rows))]

    def _encode_domain(self, rows: Sequence[_Row]) -> Sequence[_EncodedRow | HplmError]:
        """One domain's rows together; when that fails, one by one, so that only rows that touch the damage fail."""
        try:
            encoded = self._half(rows[0].entry.domain).encode([row.text for row in rows])
        except Exception as error:
            if len(rows) > 1:
                return [self._encode_domain([row])[0] for row in rows]
            LOGGER.error("domain %s: %s", rows[0].entry.domain.label, error)
            return [presentable(error)]
        self.statistics += encoded.statistics
        return [
            _EncodedRow(hidden, Ticket(row.entry.key, len(hidden), bool(cut), row.deadline_us))
            for row, hidden, cut in zip(rows, encoded.rows, encoded.truncated, strict=True)
        ]

    def _half(self, domain: DomainEntry) -> LowerHalf:
        if domain.folders not in self._halves:
            front = self._front(domain.root)
            tables = [self._table(folder, front.fingerprint) for folder in domain.folders]
            self._halves[domain.folders] = LowerHalf(front, tables)
        return self._halves[domain.folders]

    def _front(self, root: str) -> RootFront:
        if root not in self._fronts:
            self._fronts[root] = RootFront(RootFolder(self._home.root(root)))
        return self._fronts[root]

    def _table(self, folder: str, fingerprint: str) -> Table:
        if folder not in self._tables:
            self._tables[folder] = Table.open(self._home.path / folder, fingerprint)
        return self._tables[folder]


def _decoded(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{name} is not UTF-8 at byte {error.start}") from error


def _checked_text(value: bytes) -> str:
    text = _decoded(value, "TEXT")
    if not text or text.isspace():
        raise InvalidArgumentError("TEXT is empty")
    return text


def _folded(rows: Sequence[_EncodedRow | HplmError]) -> HiddenRequest | HplmError:
    """A request whose rows all worked, or the first row's error."""
    good = [row for row in rows if isinstance(row, _EncodedRow)]
    for row in rows:
        if isinstance(row, HplmError):
            return row
    if len({row.hidden.shape[1] for row in good}) > 1:
        return InvalidArgumentError("one request cannot mix hPLMs of roots with different hidden sizes")
    return HiddenRequest(fold_rows([row.hidden for row in good]), encode_tickets([row.ticket for row in good]))
