"""The service of `hplm_lower`: checks the requests of a Triton batch, encodes all rows together, folds them again.

A request that cannot be served is answered with its error; the others are served.
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
from backends.lower.encoding import EncodedRow, Row, encode_rows
from backends.lower.settings import FillingSettings
from backends.lower.upkeep import Upkeep
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.tokenizer import Text
from backends.scheduling.fair_share import tenant_of
from backends.scheduling.rejection import RejectedError, Rejection, late_on_arrival, predicted_late
from backends.scheduling.wait_forecast import ForecastReader
from backends.trace import Lane, span
from backends.wire import (
    PAIR_SEPARATOR,
    Float16Array,
    Int64Array,
    deadline_in_us,
    encode_tickets,
    encode_words,
    fold_rows,
    parse_parameters,
)

LOGGER = logging.getLogger(__name__)
_BATCHING_DELAY_PART = 0.05
"""Fraction of the time until the engine would answer a row that arrives now."""
_MAX_BATCHING_DELAY_US = 25_000
"""Long enough that, at a few hundred requests a second, one call brings ten requests instead of two."""


@dataclass(frozen=True)
class TextRequest:
    """One infer request as it arrived; `parameters` is Triton's JSON."""

    models: Sequence[bytes]
    texts: Sequence[bytes]
    parameters: str


@dataclass(frozen=True)
class HiddenRequest:
    """One request after the lower model.

    Shape:
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, 6]`; words: B (see `encode_words`).
    """

    hidden: Float16Array
    tickets: Int64Array
    words: list[bytes]


class LowerService:
    """Encodes requests with the lower models of all domains."""

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        filling: FillingSettings | None = None,
        forecast: ForecastReader | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._forecast = forecast or ForecastReader()
        self._times = CallTimes()
        self.refusals: Counter[Rejection] = Counter()
        self.domains = OpenDomains(home, filling or FillingSettings())
        self._upkeep = Upkeep(self.domains, snapshot)
        snapshot.prepare_with(self.domains.prepare)

    def close(self) -> None:
        self._snapshot.prepare_with(None)
        self._upkeep.close()
        self._forecast.close()

    def warm_up(self) -> None:
        """Open the domains of the live hPLMs; a domain that cannot be opened fails its own requests only."""
        for entry in self._snapshot.live():
            try:
                self.domains.prepare(entry.domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", entry.domain.label, error)

    def encode(self, requests: Sequence[TextRequest | HplmError]) -> list[HiddenRequest | HplmError]:
        """Encode a call's requests, each to its hidden rows or its error; errors among `requests` are passed on."""
        self._times.begin(now_us())
        with span(Lane.RETRIEVAL, "check", requests=len(requests)):
            checked = [request if isinstance(request, HplmError) else self._check(request) for request in requests]
            rows = [row for one in checked if not isinstance(one, HplmError) for row in one]
        encoded = iter(encode_rows(self.domains, rows))
        with span(Lane.RETRIEVAL, "fold", rows=len(rows)):
            folded = [one if isinstance(one, HplmError) else _folded([next(encoded) for _ in one]) for one in checked]
        self._times.end(now_us())
        return folded

    def delay_for_batching(self) -> None:
        """Wait a moment if the engine is busy for long, because encoded rows would only wait there.

        Requests that arrive meanwhile come in one call, which costs less than one by one.
        """
        now = now_us()
        delay_us = _BATCHING_DELAY_PART * (self._forecast.finish_us(now) - now)
        if delay_us > 0:
            time.sleep(min(delay_us, _MAX_BATCHING_DELAY_US) / 1e6)
            self._times.end(now_us())

    def _check(self, request: TextRequest) -> list[Row] | HplmError:
        try:
            if not request.models:
                raise InvalidArgumentError("a request has at least one row")
            entries = [self._snapshot.find(_decoded(model, "MODEL")) for model in request.models]
            deadline = self._deadline_us(request, entries)
            return [
                Row(entry, _checked_text(entry, text), deadline)
                for entry, text in zip(entries, request.texts, strict=True)
            ]
        except RejectedError as error:
            self.refusals[error.reason] += 1
            return error
        except Exception as error:
            return presentable(error)

    def _deadline_us(self, request: TextRequest, entries: Sequence[HplmEntry]) -> int | None:
        """Return a request's deadline.

        Raises:
            RejectedError: The engine could not answer the request on time; nothing has been computed for it yet.
        """
        in_us = deadline_in_us(parse_parameters(request.parameters))
        if in_us is None:
            return None
        deadline = self._times.deadline_us(in_us)
        tenants = {tenant_of(entry.id) for entry in entries}
        least_tokens = self._least_tokens(request, entries)
        now = now_us()
        if deadline <= now:
            raise late_on_arrival()
        # A row waits for all rows of its call.
        encoding_us = round(self.domains.encoding_us)
        finish = self._forecast.finish_us(now, least_tokens, tenants, deadline) + encoding_us
        if finish > deadline:
            raise predicted_late(finish - now, deadline - now)
        return deadline

    def _least_tokens(self, request: TextRequest, entries: Sequence[HplmEntry]) -> int:
        """Return a lower bound for the tokens of the longest row."""
        rows = zip(entries, request.texts, strict=True)
        return max((self._least_tokens_of(text, entry.domain) for entry, text in rows), default=1)

    def _least_tokens_of(self, text: bytes, domain: DomainEntry) -> int:
        """Count a text's words and special tokens, up to its root's limit; a word is nearly always a token or more.

        Returns 1 for a damaged domain, whose rows fail later, each with its error.
        """
        try:
            lower_model = self.domains.lower_model(domain)
        except Exception:
            return 1
        return min(lower_model.num_special_tokens + _num_words(text, lower_model.max_tokens), lower_model.max_tokens)


def _num_words(text: bytes, most: int) -> int:
    """Count words up to `most`, without reading the rest of a long text."""
    return min(len(text.split(None, most)), most)


def _decoded(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{name} is not UTF-8 at byte {error.start}") from error


def _checked_text(entry: HplmEntry, value: bytes) -> Text:
    """Decode the text; an hPLM of pairs gets the segments before and after the first TAB.

    Raises:
        InvalidArgumentError: The text or a segment is empty, or not UTF-8.
    """
    text = _decoded(value, "TEXT")
    if not text or text.isspace():
        raise InvalidArgumentError("TEXT is empty")
    if not entry.pair:
        return text
    first, tab, second = text.partition(PAIR_SEPARATOR)
    if not tab:
        raise InvalidArgumentError(f"hPLM {entry.id!r} reads pairs: TEXT needs a TAB between its segments")
    if not first.strip() or not second.strip():
        raise InvalidArgumentError("one segment of the pair in TEXT is empty")
    return first, second


def _folded(rows: Sequence[EncodedRow | HplmError]) -> HiddenRequest | HplmError:
    """Fold the rows of a request, or return the first row's error."""
    good = [row for row in rows if isinstance(row, EncodedRow)]
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
