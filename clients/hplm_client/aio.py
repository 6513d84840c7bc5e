"""The asyncio client; belongs to the event loop in which it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from hplm_client.address import Address
from hplm_client.answers import Answer, Classification, Entities, Value
from hplm_client.base import ClientBase, Limits
from hplm_client.certificates import Certificates
from hplm_client.conversation import Conversation, Outcome, Probe, Send, Step
from hplm_client.errors import ClientError
from hplm_client.tasks import AnswerT, Text, checked, requests_for
from hplm_client.transports import AsyncTransport, open_async_transport
from hplm_client.workload import Hold, OnError, RequestLike, Workload

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncHplmClient(ClientBase[AsyncTransport]):
    __doc__ = ClientBase.__doc__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed.set()
        for transport in self._transports:
            await transport.close()

    async def infer(
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
        return await self._carry_out(self._speaker.ask_one(request, timeout_s))

    @overload
    async def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: Literal["raise"] = "raise", **limits: Unpack[Limits]
    ) -> list[Answer]: ...

    @overload
    async def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: Literal["return"], **limits: Unpack[Limits]
    ) -> list[Outcome]: ...

    async def infer_many(
        self, requests: Iterable[RequestLike], *, on_error: OnError = "raise", **limits: Unpack[Limits]
    ) -> list[Answer] | list[Outcome]:
        """Answers in the order of the requests; see `HplmClient.infer_many`."""
        workload = self._workload(requests, on_error, limits)
        await _all_or_none(self._work(workload) for _ in range(min(self._concurrency, len(workload))))
        return workload.outcomes()

    @overload
    async def classify(self, hplm: str, texts: Text, **limits: Unpack[Limits]) -> Classification: ...

    @overload
    async def classify(
        self, hplm: str, texts: list[str] | list[tuple[str, str]], **limits: Unpack[Limits]
    ) -> list[Classification]: ...

    async def classify(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Classification | list[Classification]:
        """Ask an hPLM for classification about a text or a pair, or about a list of them; errors are raised."""
        return await self._of_kind(Classification, hplm, texts, limits)

    @overload
    async def entities(self, hplm: str, texts: str, **limits: Unpack[Limits]) -> Entities: ...

    @overload
    async def entities(self, hplm: str, texts: list[str], **limits: Unpack[Limits]) -> list[Entities]: ...

    async def entities(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Entities | list[Entities]:
        """Ask an hPLM for entities about a text or a list of them; errors are raised."""
        return await self._of_kind(Entities, hplm, texts, limits)

    @overload
    async def score(self, hplm: str, texts: Text, **limits: Unpack[Limits]) -> Value: ...

    @overload
    async def score(
        self, hplm: str, texts: list[str] | list[tuple[str, str]], **limits: Unpack[Limits]
    ) -> list[Value]: ...

    async def score(self, hplm: str, texts: Any, **limits: Unpack[Limits]) -> Value | list[Value]:
        """Ask an hPLM for regression about a text or a pair, or about a list of them; errors are raised."""
        return await self._of_kind(Value, hplm, texts, limits)

    async def is_ready(self) -> bool:
        """Whether the server is up and serves hPLMs."""
        return await self._carry_out(self._speaker.probe())

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        await self._carry_out(self._speaker.wait_ready(timeout_s))

    def _open(self, address: Address, certificates: Certificates | None, connect_s: float | None) -> AsyncTransport:
        return open_async_transport(address, certificates, connect_s)

    async def _of_kind(self, kind: type[AnswerT], hplm: str, texts: Any, limits: Limits) -> AnswerT | list[AnswerT]:
        if isinstance(texts, list):
            return checked(kind, await self.infer_many(requests_for(hplm, texts), **limits))
        (answer,) = checked(kind, await self.infer_many(requests_for(hplm, [texts]), **limits))
        return answer

    async def _work(self, workload: Workload) -> None:
        while (chunk := workload.take()) is not None:
            if isinstance(chunk, Hold):
                await asyncio.sleep(chunk.duration_s)
            else:
                outcomes = await self._carry_out(self._speaker.ask(chunk.requests, call_ends_at=workload.ends_at))
                workload.settle(chunk, outcomes)

    async def _carry_out(self, conversation: Conversation[T]) -> T:
        try:
            step = next(conversation)
            while True:
                try:
                    outcome = await self._perform(step)
                except ClientError as error:
                    step = conversation.throw(error)
                else:
                    step = conversation.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _perform(self, step: Step) -> list[bytes] | bool | None:
        self._check_open()
        if isinstance(step, Send):
            return await self._transports[step.server].send(step.call, step.timeout_s)
        if isinstance(step, Probe):
            return await self._transports[step.server].is_ready(step.timeout_s)
        await asyncio.sleep(step.duration_s)
        return None


async def _all_or_none(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; where one fails, or this task is cancelled, cancel the others and wait until they have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
