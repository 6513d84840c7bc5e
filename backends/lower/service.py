"""The service of `hplm_lower`: checks requests as they arrive, encodes the rows of many together, folds them again.

A request that cannot be served is answered with its error; the others are served.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from backends.clock import now_us
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.home import Home
from backends.lower.accepted_load import AcceptedLoad, Work
from backends.lower.call_times import CallTimes
from backends.lower.caller_check import Auth, CallerCheck
from backends.lower.checked_text import checked_text, decoded, num_words
from backends.lower.domains import OpenDomains
from backends.lower.encoding import EncodedRow, Row, damaged, encode_rows
from backends.lower.settings import FillingSettings, TextLimits
from backends.lower.tenant_rates import TenantRates
from backends.lower.upkeep import Upkeep
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import (
    RejectedError,
    Rejection,
    late_on_arrival,
    late_waiting,
    predicted_late,
)
from backends.scheduling.tenants import NO_TENANT, tenant_of
from backends.scheduling.wait_forecast import ForecastReader, Told
from backends.seal import OWN_SEAL, Seal
from backends.trace import Lane, span
from backends.traffic.recorder import Asked, TrafficRecorder
from backends.traffic.records import ACCEPTED, FAILED
from backends.wire import (
    AUTO,
    PAIR_SEPARATOR,
    Float16Array,
    Int64Array,
    deadline_in_us,
    encode_tickets,
    fold_rows,
    parse_parameters,
)

LOGGER = logging.getLogger(__name__)
_TOLD_WITHIN_US = 300_000
"""An engine tells its forecast within this time, unless it has nothing to do."""


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
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, len(TICKET_COLUMNS)]`; words: B.
    """

    hidden: Float16Array
    tickets: Int64Array
    words: list[bytes]


@dataclass(frozen=True, eq=False)
class AcceptedRequest:
    """A request that may be encoded. `work` is what its rows cost the engine, by the tokens that they have at least."""

    rows: Sequence[Row]
    deadline_us: int | None
    work: Work
    size_bytes: int
    """Of its texts, as far as they are kept."""
    asked: Asked

    @property
    def is_canary(self) -> bool:
        """Whether the server's own watchdog has sent it: no tenant is charged, and no quota counts it."""
        return self.asked.is_canary

    @property
    def domains(self) -> Collection[DomainEntry]:
        """Each domain of its rows once."""
        return {row.entry.domain.folders: row.entry.domain for row in self.rows}.values()


class LowerService:
    """Encodes requests with the lower models of all domains."""

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        filling: FillingSettings | None = None,
        instances: int = 1,
        seal: Seal = OWN_SEAL,
        limits: TextLimits = TextLimits(),
        auth: Auth = Auth.OFF,
        traffic: TrafficRecorder | None = None,
    ) -> None:
        """Make the service; it closes the recorder of its traffic, if there is one."""
        self._limits = limits
        self._seal = seal
        self._traffic = traffic
        self.instances = instances
        """Processes of this model; each gets the same part of the requests, as a rule."""
        self._snapshot = snapshot
        self._caller_check = CallerCheck(snapshot, auth, seal)
        self._rates = TenantRates(snapshot.quotas.rates)
        self._forecast = ForecastReader()
        self.times = CallTimes()
        """Told by the caller when a call begins and ends."""
        self.load = AcceptedLoad()
        """Told by the caller what becomes of accepted requests."""
        self.refusals: Counter[Rejection] = Counter()
        self._counting = threading.Lock()
        self.domains = OpenDomains(home, filling or FillingSettings())
        self._upkeep = Upkeep(self.domains, snapshot)
        snapshot.prepare_with(self.domains.prepare)

    def close(self) -> None:
        self._snapshot.prepare_with(None)
        self._upkeep.close()
        self._rates.close()
        self._forecast.close()
        if self._traffic is not None:
            self._traffic.close()

    @property
    def registry_age_s(self) -> float:
        """Seconds since the registry was read."""
        return self._snapshot.age_s

    def warm_up(self) -> None:
        """Open the domains of the live hPLMs; a domain that cannot be opened fails its own requests only."""
        self.domains.note_tenants(self._snapshot.live())
        for entry in self._snapshot.live():
            try:
                self.domains.prepare(entry.domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", entry.domain.label, error)

    def encode(self, requests: Sequence[TextRequest | HplmError]) -> list[HiddenRequest | HplmError]:
        """Accept and encode requests, each to its hidden rows or its error; errors among them are passed on."""
        self.times.begin(now_us())
        accepted = [one if isinstance(one, HplmError) else self.accept(one) for one in requests]
        encoded = iter(self.encode_accepted([one for one in accepted if isinstance(one, AcceptedRequest)]))
        self.times.end(now_us())
        return [one if isinstance(one, HplmError) else next(encoded) for one in accepted]

    def accept(self, request: TextRequest, wait_us: float = 0.0) -> AcceptedRequest | HplmError:
        """Check a request, or return why it is rejected; nothing has been computed for it then.

        Args:
            request: The request.
            wait_us: How long its rows will wait here.
        """
        asked = None
        try:
            asked, cut = self._asked_by(request)
            entries, tokens, level = asked.entries, asked.tokens, asked.level
            deadline = None if asked.in_us is None else self.times.deadline_us(asked.in_us)
            depths = [entry.least_depth(level) for entry in entries]
            told = self._forecast.told(now_us())
            work = _work(told, NO_TENANT if asked.is_canary else tenant_of(entries[0].id), tokens, depths)
            if deadline is not None:
                self._require_in_time(deadline, max(tokens), entries, wait_us + self._ahead_us(told, work))
            rows = [
                Row(entry, checked_text(entry, text), deadline, level, len(text) < len(whole), asked.is_canary)
                for entry, text, whole in zip(entries, cut, request.texts, strict=True)
            ]
            return AcceptedRequest(rows, deadline, work, sum(map(len, cut)), asked)
        except RejectedError as error:
            return self.rejected(error, asked)
        except Exception as error:
            return presentable(error)

    def _asked_by(self, request: TextRequest) -> tuple[Asked, list[bytes]]:
        """Read what a request asks for, if its caller may, and its texts as far as they are kept."""
        if not request.models:
            raise InvalidArgumentError("a request has at least one row")
        if len(request.models) != len(request.texts):
            raise InvalidArgumentError(
                f"{len(request.models)} rows of MODEL do not go with {len(request.texts)} of TEXT"
            )
        self._require_size(request)
        parameters = parse_parameters(request.parameters)
        entries = self._caller_check.entries([decoded(model, "MODEL") for model in request.models], parameters)
        in_us, level = deadline_in_us(parameters) or _default_in_us(entries), parameters.get("level", AUTO)
        for entry in entries:
            if level != AUTO:
                entry.require_level(level)
        cut = [self._cut(*row) for row in zip(entries, request.texts, strict=True)]
        tokens = [self._least_tokens_of(text, entry.domain) for text, entry in zip(cut, entries, strict=True)]
        is_canary = self._caller_check.is_canary(parameters)
        return Asked(now_us(), entries, tokens, in_us, level, is_canary), cut

    def _require_size(self, request: TextRequest) -> None:
        size_bytes, most = sum(map(len, (*request.models, *request.texts))), self._limits.max_request_bytes
        if size_bytes > most:
            raise InvalidArgumentError(
                f"a request has {size_bytes:,} bytes, and may have {most:,}; send fewer rows, or shorter texts"
            )

    def _cut(self, entry: HplmEntry, text: bytes) -> bytes:
        """Cut a text, or each segment of a pair, so that no more is decoded, kept and read."""
        if not entry.pair:
            return self._limits.cut(text)
        first, tab, second = text.partition(PAIR_SEPARATOR.encode())
        return self._limits.cut(first) + tab + self._limits.cut(second)

    def encode_accepted(self, requests: Sequence[AcceptedRequest]) -> list[HiddenRequest | HplmError]:
        """Encode the rows of requests together, each request to its hidden rows or its error."""
        rows = [row for request in requests for row in request.rows]
        encoded = iter(encode_rows(self.domains, rows))
        with span(Lane.RETRIEVAL, "fold", rows=len(rows)):
            of_requests = [[next(encoded) for _ in request.rows] for request in requests]
            folded = [_folded(of_request, self._seal) for of_request in of_requests]
        if self._traffic is not None:
            for request, of_request, result in zip(requests, of_requests, folded, strict=True):
                tokens = [row.ticket.num_tokens for row in of_request if isinstance(row, EncodedRow)]
                if isinstance(result, HiddenRequest):
                    self._traffic.note(request.asked, ACCEPTED, tokens)
                else:
                    self._traffic.note(request.asked, FAILED)
        return folded

    def is_open(self, request: AcceptedRequest) -> bool:
        """Whether all domains of a request are open, so that no other request would wait for them."""
        return all(self.domains.found(domain) is not None for domain in request.domains)

    def open_domains(self, request: AcceptedRequest) -> HplmError | None:
        """Open the domains of a request, which may take seconds, or return why it cannot be served."""
        for domain in request.domains:
            try:
                self.domains.prepare(domain)
            except Exception as error:
                if self._traffic is not None:
                    self._traffic.note(request.asked, FAILED)
                return damaged(domain, error)
        return None

    def still_in_time(self, request: AcceptedRequest, now: int) -> RejectedError | None:
        """Return why a request that has waited here is rejected, if it cannot be answered on time any more."""
        deadline = request.deadline_us
        if deadline is None:
            return None
        if deadline <= now:
            return self.rejected(late_waiting(), request.asked)
        finish = self._forecast.finish_us(now, 1, (request.work.tenant,), deadline)
        if finish > deadline:
            return self.rejected(predicted_late(finish - now, deadline - now), request.asked)
        return None

    def engine_wait_us(self) -> int:
        """How long a row that arrives now would wait in the engine."""
        now = now_us()
        return self._forecast.finish_us(now) - now

    def forget_told_load(self) -> None:
        """Count accepted rows no longer that an engine's forecast counts; once a call is enough."""
        now = now_us()
        told_us = min((one.at_us for one in self._forecast.told(now)), default=0)
        self.load.forget_told(max(told_us, now - _TOLD_WITHIN_US))

    def engine_tokens(self, instances: int) -> int:
        """Tokens of rows that wait in the engines, or are on their way there from all instances of this model."""
        now = now_us()
        told = sum(one.forecast.waiting_tokens for one in self._forecast.told(now) if one.is_fresh(now))
        return told + instances * self.load.forwarded_tokens

    def waiting_quota(self, tenant: str) -> int | None:
        """Return how many rows of a tenant may wait in this process, where it has a quota of its own."""
        of_all = self._snapshot.quotas.waiting_rows.get(tenant)
        return None if of_all is None else max(1, of_all // self.instances)

    def over_rate(self, request: AcceptedRequest) -> RejectedError | None:
        """Count a request for its tenant, or return why it is rejected: the tenant has sent what it may for now."""
        tenant = request.work.tenant
        error = self._rates.admit(tenant, len(request.rows), request.size_bytes, now_us())
        return None if error is None else self.rejected(error, request.asked)

    def traffic_events(self) -> dict[str, int]:
        """Return how many records of traffic were written, and how many lost; empty where none are kept."""
        traffic = self._traffic
        return {} if traffic is None else {"written": traffic.num_recorded, "lost": traffic.num_lost}

    def rejected(self, error: RejectedError, asked: Asked | None = None) -> RejectedError:
        """Count a rejection, and note it as traffic where it is known what was asked."""
        with self._counting:
            self.refusals[error.reason] += 1
        if self._traffic is not None and asked is not None:
            self._traffic.note(asked, error.reason)
        return error

    def rejected_unread(self, error: RejectedError, request: TextRequest) -> RejectedError:
        """Count the rejection of a request that was not read; it is read only to be noted as traffic."""
        asked = None
        if self._traffic is not None:
            with suppress(Exception):  # one that could not be served at any time is no traffic
                asked, _ = self._asked_by(request)
        return self.rejected(error, asked)

    def _require_in_time(self, deadline: int, num_tokens: int, entries: Sequence[HplmEntry], wait_us: float) -> None:
        """Check that the engine can answer on time; raises RejectedError."""
        now = now_us()
        if deadline <= now:
            raise late_on_arrival()
        tenants = {tenant_of(entry.id) for entry in entries}
        # A row waits for all rows that are encoded before it, and with it.
        wait_us += self.domains.call_times.usual_us
        finish = self._forecast.finish_us(now, num_tokens, tenants, deadline) + wait_us
        if finish > deadline:
            raise predicted_late(finish - now, deadline - now)

    def _ahead_us(self, told: Sequence[Told], work: Work) -> float:
        """Predict the wait for what this instance and those beside it have accepted and the engine has not counted yet.

        Returns 0 with policies that do not go by arrival: what was accepted last may run first.
        """
        if not told or not told[0].forecast.is_fair:
            return 0.0
        return self.instances * self.load.ahead_us(work.tenant, work.us)

    def _least_tokens_of(self, text: bytes, domain: DomainEntry) -> int:
        """Count a text's words and special tokens, up to its root's limit; a word is nearly always a token or more.

        Returns 1 for a domain that is not open: the caller holds a lock that all tenants wait for, so it opens none.
        """
        if (opened := self.domains.found(domain)) is None:
            return 1
        lower_model = opened.lower_model
        return min(lower_model.num_special_tokens + num_words(text, lower_model.max_tokens), lower_model.max_tokens)


def _default_in_us(entries: Sequence[HplmEntry]) -> int | None:
    """Return the deadline of a request that names none: the shortest default of its hPLMs."""
    return min((us for entry in entries if (us := entry.default_deadline_us) is not None), default=None)


def _work(told: Sequence[Told], tenant: str, tokens: Sequence[int], depths: Sequence[float]) -> Work:
    """What rows cost the engine that take the earliest answers that they may: it rejects by no more than that."""
    if not told:
        return Work(tenant, 0.0, sum(tokens))
    fastest = min((one.forecast for one in told), key=lambda forecast: forecast.work_us[0])
    works_us = (depth * fastest.row_work_us(length) for length, depth in zip(tokens, depths, strict=True))
    return Work(tenant, sum(works_us) / len(told), sum(tokens))


def _folded(rows: Sequence[EncodedRow | HplmError], seal: Seal) -> HiddenRequest | HplmError:
    """Fold the rows of a request, or return the first row's error."""
    good = [row for row in rows if isinstance(row, EncodedRow)]
    for row in rows:
        if isinstance(row, HplmError):
            return row
    if len({row.hidden.shape[1] for row in good}) > 1:
        return InvalidArgumentError("one request cannot mix hPLMs of roots with different hidden sizes")
    try:
        hidden = fold_rows([row.hidden for row in good])
        tickets = encode_tickets([row.ticket for row in good], seal)
        return HiddenRequest(hidden, tickets, [row.encoded_words for row in good])
    except Exception as error:  # a defect; raised, it would fail all requests of the call
        return presentable(error)
