"""What became of a request that was sent before, during or after a drain, and what that counts as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bench.kit.drains.clients import ANSWERED, Ended
from hplm_client import ConnectionFailedError, ConnectionLostError, NotReadyError, RequestCancelledError

_REJECTED = NotReadyError.__name__
_NEVER_SENT = ConnectionFailedError.__name__
_BROKEN = (ConnectionLostError.__name__, RequestCancelledError.__name__)


@dataclass(frozen=True)
class Drain:
    """Moments of one drain, on the machine's monotonic clock.

    Attributes:
        ordered_s: SIGTERM, or the POST.
        unready_s: `/readyz` said no for the first time.
        closed_s: The models began to reject new requests.
        ended_s: `hplm serve` had ended.
    """

    ordered_s: float
    unready_s: float
    closed_s: float
    ended_s: float

    def counts(self, requests: Iterable[Ended]) -> Counter[str]:
        return Counter(self.outcome(request) for request in requests)

    def outcome(self, request: Ended) -> str:
        """Name what became of a request.

        - `answered`, and of these `answered draining` where the answer came after the order;
        - `rejected`: said to be stopping, sent after readiness went down, so never accepted;
        - `refused`: no connection was made once the drain had been ordered;
        - `cut`: sent when everything new was being rejected, and the connection ended before the rejection came;
        - `later`: sent when the server had ended; of these `answered again` those that the next one answered;
        - `failed`: all else. It may have been accepted, and got no answer.
        """
        if request.sent_s >= self.ended_s:
            return "answered again" if request.error == ANSWERED else "later"
        if request.error == ANSWERED:
            return "answered draining" if request.ended_s >= self.ordered_s else "answered"
        if request.error == _REJECTED and request.sent_s >= self.unready_s:
            return "rejected"
        if request.error == _NEVER_SENT and request.sent_s >= self.ordered_s:
            return "refused"
        if request.error in _BROKEN and request.sent_s >= self.closed_s:
            return "cut"
        return "failed"
