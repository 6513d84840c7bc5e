"""The queue in front of the encoder: requests wait as texts, and are rejected before anything is computed for them.

Triton's thread brings requests and is free again at once, so few wait unseen in front of this process, where deadlines
would pass unnoticed. A thread of this process encodes what waits, many rows together.

Requests with a deadline come first, in the order of their arrival. Those without one wait for room in the engine, where
a row takes a hundred times the memory of its text; their tenants take turns. A request whose domain is not open waits
beside them until a second thread has opened it, because that may take seconds.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from backends.clock import now_us
from backends.errors import HplmError, InvalidArgumentError, UnavailableError, presentable
from backends.heartbeat import BEAT_EVERY_S, Beat, adopt_beat, no_beat
from backends.lower.recent_times import RecentTimes
from backends.lower.service import AcceptedRequest, HiddenRequest, LowerService, TextRequest
from backends.lower.settings import QueueSettings
from backends.scheduling.rejection import late_waiting, queue_full, tenant_bytes, tenant_quota

LOGGER = logging.getLogger(__name__)
Encoded = HiddenRequest | HplmError
Respond = Callable[[Encoded], None]
_BATCHING_DELAY_PART = 0.05
"""Fraction of the time until the engine would answer a row that arrives now."""
_MAX_BATCHING_DELAY_US = 25_000
"""Long enough that, at a few hundred requests a second, one batch holds ten requests instead of two."""
_FULL_ENGINE_POLL_S = 0.01
_LONGEST_PASSED_OVER_US = 1_000_000
"""A request without a deadline that is too large for the room that is left has a batch of its own after so long."""
_STOPPING = "the server is stopping"


def _ignore() -> None:
    pass


@dataclass(frozen=True, eq=False)
class _Waiting:
    request: AcceptedRequest
    respond: Respond

    @property
    def num_rows(self) -> int:
        return len(self.request.rows)


class EncodeQueue:
    """Takes requests in, and encodes them on a thread of its own; a second one opens domains."""

    def __init__(
        self,
        service: LowerService,
        settings: QueueSettings = QueueSettings(),
        on_failure: Callable[[], None] = _ignore,
        beat: Beat = no_beat,
    ) -> None:
        """Start the threads; a defect of one calls `on_failure`, each round of encoding `beat`."""
        self._service = service
        self._settings = settings
        self._on_failure = on_failure
        self._beat = beat
        self._lock = threading.Lock()
        self._changed, self._has_unopened, self._has_batch = (threading.Condition(self._lock) for _ in range(3))
        """One for each wait of the threads, because one that is woken too early takes processor time."""
        self._urgent: deque[_Waiting] = deque()
        self._patient: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._unopened: list[_Waiting] = []
        """What waits until its domains are open."""
        self._taken: list[_Waiting] = []
        """What the encoding thread has taken and not answered yet."""
        self._passed_over_us: int | None = None
        """Since when the request of the tenant whose turn it is has been too large for the room that was left."""
        self._rows_of: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()
        self._num_rows = self._num_urgent_rows = self._num_bytes = 0
        self._row_times = RecentTimes()
        self._bytes_per_token = 0.0
        self._is_closed = False
        self._encoding, self._opening = (
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for work, name in ((self._encode_all, "encode"), (self._open_all, "open"))
        )
        self._encoding.start()
        self._opening.start()

    @property
    def num_rows(self) -> int:
        """Rows that wait."""
        return self._num_rows

    def begin_call(self) -> None:
        """Triton has brought requests."""
        with self._lock:
            self._service.times.begin(now_us())
            self._service.forget_told_load()

    def end_call(self) -> None:
        self._service.times.end(now_us())

    def add(self, request: TextRequest, respond: Respond) -> HplmError | None:
        """Queue a request, to be answered through `respond`; returns why it is rejected instead."""
        with self._lock:
            if self._is_closed:
                return UnavailableError(_STOPPING)
            size = len(request.texts)
            if size > self._settings.max_rows_of_request:
                return _too_large(size, self._settings.max_rows_of_request)
            if self._num_rows + size > self._settings.max_rows or self._num_bytes > self._settings.max_bytes:
                return self._service.rejected_unread(queue_full(self._num_rows), request)
            accepted = self._service.accept(request, self._num_urgent_rows * self._row_times.usual_us)
            if isinstance(accepted, HplmError):
                return accepted
            if (error := self._over_quota(accepted)) is not None:
                return error
            self._enter(_Waiting(accepted, respond))
            self._changed.notify()
            if self._has_full_batch():
                self._has_batch.notify()
        return None

    def close(self) -> None:
        """Reject what waits; returns once nothing is encoded or opened any more."""
        with self._lock:
            self._is_closed = True
            for condition in (self._changed, self._has_unopened, self._has_batch):
                condition.notify()
        self._encoding.join()
        self._reject_all()
        self._opening.join()

    # --- entering and leaving; the lock is held ---

    def _over_quota(self, request: AcceptedRequest) -> HplmError | None:
        """Return why a request is rejected, if its tenant has as much here, or has sent as much, as it may."""
        if request.is_canary:
            return None
        tenant, size = request.work.tenant, len(request.rows)
        own = self._service.waiting_quota(tenant)
        most = self._settings.max_rows_of_tenant if own is None else own
        if size > most:
            return _too_large(size, most)
        if (waits := self._rows_of.get(tenant, 0)) + size > most:
            return self._service.rejected(tenant_quota(waits), request.asked)
        waiting_bytes = self._bytes_of[tenant]
        if waiting_bytes and waiting_bytes + request.size_bytes > self._settings.max_bytes_of_tenant:
            return self._service.rejected(tenant_bytes(waiting_bytes), request.asked)
        return self._service.over_rate(request)

    def _enter(self, waiting: _Waiting) -> None:
        work = waiting.request.work
        if self._service.is_open(waiting.request):
            self._line_up(waiting)
        else:
            self._unopened.append(waiting)
            self._has_unopened.notify()
        self._num_rows += waiting.num_rows
        self._num_bytes += waiting.request.size_bytes
        self._rows_of[work.tenant] = self._rows_of.get(work.tenant, 0) + waiting.num_rows
        self._bytes_of[work.tenant] += waiting.request.size_bytes

    def _line_up(self, waiting: _Waiting) -> None:
        work = waiting.request.work
        if waiting.request.deadline_us is None:
            self._patient.setdefault(work.tenant, deque()).append(waiting)
        else:
            self._urgent.append(waiting)
            self._num_urgent_rows += waiting.num_rows
            self._service.load.accept(work)

    def _leave(self, waiting: _Waiting) -> None:
        tenant = waiting.request.work.tenant
        self._num_rows -= waiting.num_rows
        self._num_bytes -= waiting.request.size_bytes
        self._rows_of[tenant] -= waiting.num_rows
        self._bytes_of[tenant] -= waiting.request.size_bytes
        if not self._rows_of[tenant]:
            del self._rows_of[tenant], self._bytes_of[tenant]

    def _take_urgent(self, most_rows: int | None) -> _Waiting | None:
        if not self._urgent or not _fits(self._urgent[0], most_rows):
            return None
        waiting = self._urgent.popleft()
        self._num_urgent_rows -= waiting.num_rows
        return waiting

    def _take_patient(self, most_rows: int | None, now: int) -> _Waiting | None:
        """The oldest request of the tenant whose turn it is; where that is too large, of the next one's that fits."""
        fitting = (number for number, queue in enumerate(self._patient.values()) if _fits(queue[0], most_rows))
        number = next(fitting, None)
        if number is None or number > 0:
            self._passed_over_us = self._passed_over_us or now
        else:
            self._passed_over_us = None
        if number is None:
            return None
        tenant, queue = next(islice(self._patient.items(), number, None))
        waiting = queue.popleft()
        if queue:
            self._patient.move_to_end(tenant)
        else:
            del self._patient[tenant]
        return waiting

    def _take_next(self, most_rows: int | None, now: int, is_engine_full: bool) -> _Waiting | None:
        """Take a request with a deadline before one without, unless that was passed over for long."""
        passed_over_us = None if most_rows is not None or is_engine_full else self._passed_over_us
        waiting = None
        if passed_over_us is not None and now - passed_over_us > _LONGEST_PASSED_OVER_US:
            waiting = self._take_patient(None, now)
        waiting = waiting or self._take_urgent(most_rows)
        if waiting is None and self._patient and not is_engine_full:
            waiting = self._take_patient(most_rows, now)
        return waiting

    def _take_batch(self) -> tuple[list[_Waiting], list[tuple[_Waiting, HplmError]]]:
        """Take the requests that are encoded next, and those that are too late for it."""
        now, room = now_us(), self._settings.batch_rows
        batch: list[_Waiting] = []
        late = self._take_late_unopened(now)
        is_engine_full = self._is_engine_full()
        while room > 0:
            most_rows = room if batch else None  # a request of more rows is a batch of its own
            waiting = self._take_next(most_rows, now, is_engine_full)
            if waiting is None:
                break
            self._leave(waiting)
            self._taken.append(waiting)
            rejection = self._service.still_in_time(waiting.request, now)
            work, has_deadline = waiting.request.work, waiting.request.deadline_us is not None
            if rejection is not None:
                self._service.load.drop(work)
                late.append((waiting, rejection))
                continue
            self._service.load.forward(work, now, has_deadline)
            batch.append(waiting)
            room -= waiting.num_rows
        return batch, late

    def _take_late_unopened(self, now: int) -> list[tuple[_Waiting, HplmError]]:
        """Take the requests whose deadline has passed while their domain was being opened."""
        late: list[tuple[_Waiting, HplmError]] = []
        for waiting in [one for one in self._unopened if _is_late(one, now)]:
            self._unopened.remove(waiting)
            self._leave(waiting)
            self._taken.append(waiting)
            late.append((waiting, self._service.rejected(late_waiting(), waiting.request.asked)))
        return late

    def _is_engine_full(self) -> bool:
        tokens = self._service.engine_tokens(self._service.instances)
        return tokens * self._bytes_per_token > self._settings.engine_bytes

    def _reject_all(self) -> None:
        """Close, and reject what has no answer yet."""
        with self._lock:
            self._is_closed = True
            patient = [one for queue in self._patient.values() for one in queue]
            waiting = [*self._taken, *self._unopened, *self._urgent, *patient]
            self._unopened.clear()
            self._urgent.clear()
            self._patient.clear()
        for one in waiting:
            _respond(one, UnavailableError(_STOPPING))

    # --- the threads ---

    def _guarded(self, work: Callable[[], None]) -> None:
        """Answer all that waits if a defect ends a thread, for no request may wait for ever; then report it."""
        try:
            work()
        except Exception:
            LOGGER.exception("the encode queue has failed")
            self._reject_all()
            self._on_failure()

    def _open_all(self) -> None:
        while True:
            with self._lock:
                self._has_unopened.wait_for(lambda: self._is_closed or self._unopened)
                if self._is_closed:
                    return
                waiting = self._unopened[0]
            error = self._service.open_domains(waiting.request)
            with self._lock:
                if waiting not in self._unopened:  # it was rejected meanwhile
                    continue
                self._unopened.remove(waiting)
                if error is None:
                    self._line_up(waiting)
                else:
                    self._leave(waiting)
                self._changed.notify()
            if error is not None:
                _respond(waiting, error)

    def _encode_all(self) -> None:
        adopt_beat(self._beat)
        while True:
            self._beat()
            with self._lock:
                if not self._changed.wait_for(lambda: self._is_closed or self._num_rows > 0, BEAT_EVERY_S):
                    continue
                if self._is_closed:
                    return
                self._service.forget_told_load()
                batch, late = self._take_batch()
                if not batch and not late:
                    self._changed.wait(_FULL_ENGINE_POLL_S)
            for waiting, rejection in late:
                _respond(waiting, rejection)
            if batch:
                self._encode(batch)
            self._taken.clear()
            if batch:
                self._delay_for_batching()

    def _encode(self, batch: Sequence[_Waiting]) -> None:
        began_us = now_us()
        try:
            encoded: Sequence[Encoded] = self._service.encode_accepted([waiting.request for waiting in batch])
        except Exception as error:  # a defect; raised, it would leave all later requests without an answer
            encoded = [presentable(error)] * len(batch)
        for waiting, result in zip(batch, encoded, strict=True):
            _respond(waiting, result)
        num_rows = sum(waiting.num_rows for waiting in batch)
        self._row_times.note((now_us() - began_us) / num_rows)
        sizes = [result.hidden.shape[-1] for result in encoded if isinstance(result, HiddenRequest)]
        self._bytes_per_token = 2.0 * max(sizes, default=0) or self._bytes_per_token

    def _delay_for_batching(self) -> None:
        """Wait a moment if the engine is busy for long, because encoded rows would only wait there.

        Rows that arrive meanwhile are encoded together, which costs less than one by one.
        """
        delay_us = min(_BATCHING_DELAY_PART * self._service.engine_wait_us(), _MAX_BATCHING_DELAY_US)
        if delay_us > 0:
            with self._lock:
                self._has_batch.wait_for(self._has_full_batch, delay_us / 1e6)

    def _has_full_batch(self) -> bool:
        return self._is_closed or self._num_rows >= self._settings.batch_rows


def _fits(waiting: _Waiting, most_rows: int | None) -> bool:
    return most_rows is None or waiting.num_rows <= most_rows


def _is_late(waiting: _Waiting, now: int) -> bool:
    deadline = waiting.request.deadline_us
    return deadline is not None and deadline <= now


def _too_large(num_rows: int, most: int) -> InvalidArgumentError:
    """A queue that is full would be worth a retry; this is not."""
    return InvalidArgumentError(
        f"a request has {num_rows} rows, and only {most} may be in it, by what may wait here of a tenant "
        "(max_waiting, tenant_quota, quota waiting_rows) and by max_batch_size"
    )


def _respond(waiting: _Waiting, result: Encoded) -> None:
    try:
        waiting.respond(result)
    except Exception:
        LOGGER.exception("an answer could not be sent")
