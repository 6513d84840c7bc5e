"""The client of a Locust user: asks through the SDK and reports every request to Locust."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from locust.env import Environment

from hplm_client import Answer, ClientError, Request
from hplm_client.address import parse_addresses
from hplm_client.limits import check_deadline
from loadtest.outcome import Kind, Outcome
from loadtest.users.greenlets import GreenletClient
from loadtest.users.verdict import VERDICT

REJECTED = "rejected"
"""The type under which Locust counts requests that the server rejected, or that were too late to be sent."""


class UserClient:
    """Asks hPLMs. Locust's statistics get a row per hPLM and protocol, and one of type `rejected` per hPLM.

    A rejection is an answer to overload, so Locust does not count it as a failure. Every other error is one.

    Args:
        environment: Locust's.
        url: `grpc://host:port` or `http://host:port`.
        due: Returns the moment of the monotonic clock at which the next request was to be sent.
    """

    def __init__(self, environment: Environment, url: str, due: Callable[[], float]) -> None:
        self._environment = environment
        self._protocol = parse_addresses(url)[0].protocol
        self._sdk = _shared_sdk(environment, url)
        self._due = due

    def infer(
        self,
        hplm: str,
        text: str,
        text_pair: str | None = None,
        *,
        deadline_ms: float | None = None,
        level: str | None = None,
        timeout_s: float | None = None,
        name: str | None = None,
    ) -> Answer | None:
        """Ask once; None where there is no answer.

        Latency and deadline count from when the request was due. `name` stands in Locust's tables instead of the
        hPLM's ID.

        Raises:
            InvalidRequestError: The deadline is none; it fails the task.
        """
        if isinstance(deadline_ms, float):  # drawn from a distribution, say
            deadline_ms = math.floor(deadline_ms)
        check_deadline(deadline_ms, hplm)
        VERDICT.requests += 1
        due_s = self._due()
        sent_s = time.monotonic()
        left_ms = None if deadline_ms is None else math.floor(deadline_ms - 1000 * (sent_s - due_s))
        if left_ms is not None and left_ms < 1:
            self._report(name or hplm, due_s, Outcome.unsent(0, sent_s), None, None)
            return None
        result = self._ask(Request(hplm, text, text_pair, left_ms, level), timeout_s)
        error = result if isinstance(result, ClientError) else None
        answer = None if isinstance(result, ClientError) else result
        self._report(name or hplm, due_s, Outcome.of(0, sent_s, time.monotonic(), result), answer, error)
        return answer

    def _ask(self, request: Request, timeout_s: float | None) -> Answer | ClientError:
        try:
            return self._sdk.infer(
                request.hplm,
                request.text,
                request.text_pair,
                deadline_ms=request.deadline_ms,
                level=request.level,
                timeout_s=timeout_s,
            )
        except ClientError as error:
            return error

    def _report(
        self, name: str, due_s: float, outcome: Outcome, answer: Answer | None, error: ClientError | None
    ) -> None:
        rejected = outcome.kind in (Kind.REJECTED, Kind.UNSENT)
        latency_s = time.monotonic() - due_s
        self._environment.events.request.fire(
            request_type=REJECTED if rejected else self._protocol,
            name=name,
            response_time=1000 * latency_s,
            response_length=0,
            start_time=time.time() - latency_s,
            response=answer,
            context={"outcome": outcome.kind, "reason": outcome.reason},
            exception=None if rejected else error,
        )


_SDKS: dict[tuple[int, str], GreenletClient] = {}


def _shared_sdk(environment: Environment, url: str) -> GreenletClient:
    """Return the one SDK client of this process for a server: it serves all users, without retries."""
    key = id(environment), url
    if key not in _SDKS:
        client = _SDKS[key] = GreenletClient(url, retries=0).with_options(deadline_ms=None, timeout_s=None)

        def close(**_: Any) -> None:
            client.close()
            _SDKS.pop(key, None)

        environment.events.quit.add_listener(close)
    return _SDKS[key]
