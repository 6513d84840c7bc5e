"""The blocking client; safe between threads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from hplm_client.address import Address
from hplm_client.answers import Answer, Classification, Entities, Value
from hplm_client.base import ClientBase, Limits
from hplm_client.certificates import Certificates
from hplm_client.conversation import Conversation, Outcome, Probe, Send, Step
from hplm_client.errors import ClientError
from hplm_client.tasks import AnswerT, Text, checked, requests_for
from hplm_client.transports import Transport, open_transport
from hplm_client.workload import Hold, OnError, RequestLike, Workload

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class HplmClient(ClientBase[Transport]):
    __doc__ = ClientBase.__doc__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        for transport in self._transports:
            transport.close()

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
        request = self._request(hplm, text, text_pair, deadline_ms, level)
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
        """Ask many requests and return the answers in their order; `timeout_s` is for the whole call.

        Deadlines count from when a request is sent. No more are under way than the server answers within them, and
        rejected ones are sent again when the server says, for as long as answers come. With `on_error="return"` an
        error is returned instead of its answer. With "raise" the first error ends the call.
        """
        workload = self._workload(requests, on_error, limits)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="hplm-client") as pool:
            try:
                for done in [pool.submit(self._work, workload) for _ in range(min(self._concurrency, len(workload)))]:
                    done.result()
            finally:
                workload.abandon()
        return workload.outcomes()

    @overload
    def classify(self, hplm: str, texts: Text, **limits: Unpack[Limits]) -> Classification: ...

    @overload
    def classify(
        self, hplm: str, texts: list[str] | list[tuple[str, str]], **limits: Unpack[Limits]
    ) -> list[Classification]: ...

    def classify(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Classification | list[Classification]:
        """Ask an hPLM for classification about a text or a pair, or about a list of them; errors are raised."""
        return self._of_kind(Classification, hplm, texts, limits)

    @overload
    def entities(self, hplm: str, texts: str, **limits: Unpack[Limits]) -> Entities: ...

    @overload
    def entities(self, hplm: str, texts: list[str], **limits: Unpack[Limits]) -> list[Entities]: ...

    def entities(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Entities | list[Entities]:
        """Ask an hPLM for entities about a text or a list of them; errors are raised."""
        return self._of_kind(Entities, hplm, texts, limits)

    @overload
    def score(self, hplm: str, texts: Text, **limits: Unpack[Limits]) -> Value: ...

    @overload
    def score(self, hplm: str, texts: list[str] | list[tuple[str, str]], **limits: Unpack[Limits]) -> list[Value]: ...

    def score(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Value | list[Value]:
        """Ask an hPLM for regression about a text or a pair, or about a list of them; errors are raised."""
        return self._of_kind(Value, hplm, texts, limits)

    def is_ready(self) -> bool:
        """Whether the server is up and serves hPLMs."""
        return self._carry_out(self._speaker.probe())

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        self._carry_out(self._speaker.wait_ready(timeout_s))

    def _open(self, address: Address, certificates: Certificates | None, connect_s: float | None) -> Transport:
        return open_transport(address, certificates, connect_s)

    def _of_kind(self, kind: type[AnswerT], hplm: str, texts: Any, limits: Limits) -> AnswerT | list[AnswerT]:
        if isinstance(texts, list):
            return checked(kind, self.infer_many(requests_for(hplm, texts), **limits))
        (answer,) = checked(kind, self.infer_many(requests_for(hplm, [texts]), **limits))
        return answer

    def _work(self, workload: Workload) -> None:
        try:
            self._work_off(workload)
        except BaseException:
            workload.abandon()  # or other workers would wait for what this one has under way
            raise

    def _work_off(self, workload: Workload) -> None:
        while (chunk := workload.take()) is not None:
            if isinstance(chunk, Hold):
                time.sleep(chunk.duration_s)
            else:
                outcomes = self._carry_out(self._speaker.ask(chunk.requests, call_ends_at=workload.ends_at))
                workload.settle(chunk, outcomes)

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
        if isinstance(step, Send):
            return self._transports[step.server].send(step.call, step.timeout_s)
        if isinstance(step, Probe):
            return self._transports[step.server].is_ready(step.timeout_s)
        time.sleep(step.duration_s)
        return None
