"""What `hplm_lower` does with a Triton batch: check every request, encode all rows together, fold them again.

A request that cannot be served gets its error in its place; the others go on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from backends.clock import now_us
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.home import Home
from backends.lower.call_times import CallTimes
from backends.lower.domains import OpenDomains
from backends.lower.model import LowerModel
from backends.lower.settings import FillingSettings
from backends.lower.upkeep import Upkeep
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.tokenizer import Text
from backends.root.words import RowWords
from backends.scheduling.backlog_signal import BacklogReader
from backends.scheduling.fair_share import tenant_of
from backends.scheduling.refusal import Refusal, RefusedError, late_on_arrival, predicted_late
from backends.trace import Lane, span
from backends.wire import (
    PAIR_SEPARATOR,
    Float16Array,
    Int64Array,
    TextWords,
    Ticket,
    deadline_us,
    encode_tickets,
    encode_words,
    fold_rows,
    parse_parameters,
)

LOGGER = logging.getLogger(__name__)
_LINGER_PART = 0.05
"""Of the time until a row that comes now would be answered."""
_LONGEST_LINGER_US = 25_000
"""At some hundred requests a second a call then brings ten, not two."""


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
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, 6]`; words: B (see `encode_words`).
    """

    hidden: Float16Array
    tickets: Int64Array
    words: list[bytes]


@dataclass(frozen=True)
class _Row:
    entry: HplmEntry
    text: Text
    deadline_us: int | None
    read_us: int


@dataclass(frozen=True)
class _EncodedRow:
    hidden: Float16Array
    ticket: Ticket
    words: TextWords | None


class LowerService:
    """The lower halves of all domains, behind one front door."""

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        filling: FillingSettings | None = None,
        backlog: BacklogReader | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._backlog = backlog or BacklogReader()
        self._times = CallTimes()
        self.refusals: Counter[Refusal] = Counter()
        self.domains = OpenDomains(home, filling or FillingSettings())
        self._upkeep = Upkeep(self.domains, snapshot)
        snapshot.prepare_with(self.domains.prepare)

    def close(self) -> None:
        self._snapshot.prepare_with(None)
        self._upkeep.close()
        self._backlog.close()

    def warm_up(self) -> None:
        """Open what the live hPLMs need; what cannot be opened is an error of the requests that need it."""
        for entry in self._snapshot.live():
            try:
                self.domains.prepare(entry.domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", entry.domain.label, error)

    def encode(self, requests: Sequence[TextRequest | HplmError]) -> list[HiddenRequest | HplmError]:
        """A request that could not even be read comes in as its error and goes out as it."""
        self.domains.begin_batch()
        read_us = self._times.begin(now_us())
        with span(Lane.RETRIEVAL, "check", requests=len(requests)):
            checked = [
                request if isinstance(request, HplmError) else self._check(request, read_us) for request in requests
            ]
            rows = [row for one in checked if not isinstance(one, HplmError) for row in one]
        encoded = iter(self._encode_rows(rows))
        with span(Lane.RETRIEVAL, "fold", rows=len(rows)):
            folded = [one if isinstance(one, HplmError) else _folded([next(encoded) for _ in one]) for one in checked]
        self._times.end(now_us())
        return folded

    def linger(self) -> None:
        """Return a little later than now if the engine is busy for long: what was encoded would wait there.

        What comes meanwhile is one batch, which costs less than one request after the other.
        """
        now = now_us()
        linger_us = _LINGER_PART * (self._backlog.earliest_finish_us(now) - now)
        if linger_us > 0:
            time.sleep(min(linger_us, _LONGEST_LINGER_US) / 1e6)
            self._times.end(now_us())

    def _check(self, request: TextRequest, read_us: int) -> list[_Row] | HplmError:
        try:
            if not request.models:
                raise InvalidArgumentError("a request has at least one row")
            entries = [self._snapshot.find(_decoded(model, "MODEL")) for model in request.models]
            deadline = self._deadline_us(request, entries, read_us)
            return [
                _Row(entry, _checked_text(entry, text), deadline, read_us)
                for entry, text in zip(entries, request.texts, strict=True)
            ]
        except RefusedError as error:
            self.refusals[error.reason] += 1
            return error
        except Exception as error:
            return presentable(error)

    def _deadline_us(self, request: TextRequest, entries: Sequence[HplmEntry], read_us: int) -> int | None:
        """Refused here, before anything is done for it, is what the engine could not answer in time anyway."""
        deadline = deadline_us(parse_parameters(request.parameters), read_us)
        if deadline is not None:
            now = now_us()
            if deadline <= now:
                raise late_on_arrival()
            tenants = {tenant_of(entry.id) for entry in entries}
            earliest = self._backlog.earliest_finish_us(now, self._least_tokens(request, entries), tenants)
            if earliest > deadline:
                raise predicted_late(earliest - now, deadline - now)
        return deadline

    def _least_tokens(self, request: TextRequest, entries: Sequence[HplmEntry]) -> int:
        """Of the longest row."""
        rows = zip(entries, request.texts, strict=True)
        return max((self._least_tokens_of(text, entry.domain) for entry, text in rows), default=1)

    def _least_tokens_of(self, text: bytes, domain: DomainEntry) -> int:
        """A word is nearly always a token or more, up to where its root cuts a text off.

        1 for a domain that is damaged: its own rows say so, one by one.
        """
        try:
            lower_model = self.domains.lower_model(domain)
        except Exception:
            return 1
        return min(lower_model.num_special_tokens + _num_words(text, lower_model.max_tokens), lower_model.max_tokens)

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
        domain = rows[0].entry.domain
        try:
            lower_model = self.domains.lower_model(domain)
        except Exception as error:
            return [_damaged(domain, error)] * len(rows)
        return self._encode_with(lower_model, domain, rows)

    def _encode_with(
        self, lower_model: LowerModel, domain: DomainEntry, rows: Sequence[_Row]
    ) -> Sequence[_EncodedRow | HplmError]:
        """All together; when that fails, one by one, so that only rows that touch the damage fail."""
        try:
            with_words = [row.entry.task == "ner" for row in rows]
            encoded = lower_model.encode([row.text for row in rows], with_words)
        except Exception as error:
            if len(rows) > 1:
                return [self._encode_with(lower_model, domain, [row])[0] for row in rows]
            return [_damaged(domain, error)]
        self.domains.note(domain, encoded.statistics.counts)
        return [
            _EncodedRow(
                hidden,
                Ticket(row.entry.key, len(hidden), bool(cut), row.deadline_us, middle, row.read_us),
                _text_words(row, words),
            )
            for row, hidden, cut, words, middle in zip(
                rows, encoded.rows, encoded.truncated, encoded.words, encoded.middles, strict=True
            )
        ]


def _damaged(domain: DomainEntry, error: Exception) -> HplmError:
    LOGGER.error("domain %s: %s", domain.label, error)
    return presentable(error, "the table of this hPLM is")


def _num_words(text: bytes, most: int) -> int:
    """At most `most`; of a text of megabytes no more is looked at."""
    return min(len(text.split(None, most)), most)


def _decoded(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{name} is not UTF-8 at byte {error.start}") from error


def _checked_text(entry: HplmEntry, value: bytes) -> Text:
    """The text, or for an hPLM of pairs both its halves: whatever stands before the first TAB, and the rest."""
    text = _decoded(value, "TEXT")
    if not text or text.isspace():
        raise InvalidArgumentError("TEXT is empty")
    if not entry.pair:
        return text
    first, tab, second = text.partition(PAIR_SEPARATOR)
    if not tab:
        raise InvalidArgumentError(f"hPLM {entry.id!r} reads pairs: TEXT needs a TAB between its halves")
    if not first.strip() or not second.strip():
        raise InvalidArgumentError("one segment of the pair in TEXT is empty")
    return first, second


def _text_words(row: _Row, words: RowWords | None) -> TextWords | None:
    return TextWords(row.text, words) if words is not None and isinstance(row.text, str) else None


def _folded(rows: Sequence[_EncodedRow | HplmError]) -> HiddenRequest | HplmError:
    """A request whose rows all worked, or the first row's error."""
    good = [row for row in rows if isinstance(row, _EncodedRow)]
    for row in rows:
        if isinstance(row, HplmError):
            return row
    if len({row.hidden.shape[1] for row in good}) > 1:
        return InvalidArgumentError("one request cannot mix hPLMs of roots with different hidden sizes")
    try:
        hidden = fold_rows([row.hidden for row in good])
        return HiddenRequest(
            hidden, encode_tickets([row.ticket for row in good]), [encode_words(row.words) for row in good]
        )
    except Exception as error:  # a defect; raised, it would fail all requests of the call
        return presentable(error)
