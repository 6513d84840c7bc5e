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
        self._halves: dict[tuple[str, ...], LowerHalf] = {}
        self.statistics = HitStatistics()

    def warm_up(self) -> None:
        """Open what the live hPLMs need; what cannot be opened is an error of the requests that need it."""
        for entry in self._snapshot.live():
            try:
                self._half(entry.domain)
            except HplmError as error:
                LOGGER.error("domain %s cannot be served: %s", entry.domain.label, error)

    def encode(self, requests: Sequence[TextRequest]) -> list[HiddenRequest | HplmError]:
        checked = [self._check(request) for request in requests]
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
        except HplmError as error:
            return error

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
        try:
            encoded = self._half(rows[0].entry.domain).encode([row.text for row in rows])
        except Exception as error:
            LOGGER.error("domain %s: %s", rows[0].entry.domain.label, error)
            return [presentable(error)] * len(rows)
        self.statistics += encoded.statistics
        return [
            _EncodedRow(hidden, Ticket(row.entry.key, len(hidden), bool(cut), row.deadline_us))
            for row, hidden, cut in zip(rows, encoded.rows, encoded.truncated, strict=True)
        ]

    def _half(self, domain: DomainEntry) -> LowerHalf:
        if domain.folders not in self._halves:
            if domain.root not in self._fronts:
                self._fronts[domain.root] = RootFront(RootFolder(self._home.root(domain.root)))
            self._halves[domain.folders] = LowerHalf.open(self._home, domain, self._fronts[domain.root])
        return self._halves[domain.folders]


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
