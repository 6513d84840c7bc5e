"""The blocking client; safe between threads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Self, TypeVar, Unpack, overload

from clients.address import Address
from clients.answers import Answer
from clients.base import ClientBase, Limits
from clients.conversation import Conversation, Outcome, Pause, Probe, Send, Step
from clients.errors import ClientError
from clients.request import Request
from clients.transports import Transport, open_transport
from clients.workload import OnError, RequestLike, Workload

T = TypeVar("T")


class HplmClient(ClientBase[Transport]):
    __doc__ = ClientBase.__doc__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._transport.close()

    def infer(
        self,
        hplm: str,
        text: str,
        text_pair: str | None = None,
        *,
        deadline_ms: int | None = None,
        level: str | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        request = Request(hplm, text, text_pair, deadline_ms, level)
        return self._carry_out(self._speaker.ask_one(request, timeout_s))

    @overload
    def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: Literal["raise"] = "raise", **limits: Unpack[Limits]
    ) -> list[Answer]: ...

    @overload
    def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: Literal["return"], **limits: Unpack[Limits]
    ) -> list[Outcome]: ...

    def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: OnError = "raise", **limits: Unpack[Limits]
    ) -> list[Answer] | list[Outcome]:
        """Answers in the order of the requests; `timeout_s` is for the whole call.

        With `on_error="return"` an error stands in the place of its answer. With "raise" the first one ends the call.
        """
        workload = Workload(requests, self._rows_per_request, on_error, **limits)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="hplm-client") as pool:
            try:
                for done in [pool.submit(self._work, workload) for _ in range(min(self._concurrency, len(workload)))]:
                    done.result()
            finally:
                workload.abandon()
        return workload.outcomes()

    def is_ready(self) -> bool:
        """Whether the server is up and serves hPLMs."""
        return self._carry_out(self._speaker.probe())

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        self._carry_out(self._speaker.wait_ready(timeout_s))

    def _open(self, address: Address) -> Transport:
        return open_transport(address)

    def _work(self, workload: Workload) -> None:
        while chunk := workload.take():
            workload.settle(chunk, self._carry_out(self._speaker.ask(chunk.requests, call_ends_at=workload.ends_at)))

    def _carry_out(self, conversation: Conversation[T]) -> T:
        try:
            step = next(conversation)
            while True:
                try:
                    outcome = self._perform(step)
                except ClientError as error:
                    step = conversation.throw(error)
                else:
                    step = conversation.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _perform(self, step: Step) -> list[bytes] | bool | None:
        self._check_open()
        match step:
            case Send(call, timeout_s):
                return self._transport.send(call, timeout_s)
            case Probe(timeout_s):
                return self._transport.is_ready(timeout_s)
            case Pause(duration_s):
                time.sleep(duration_s)
                return None
