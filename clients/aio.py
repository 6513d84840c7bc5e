"""The asyncio client; belongs to the event loop in which it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal, Self, TypeVar, Unpack, overload

from clients.address import Address
from clients.answers import Answer
from clients.base import ClientBase, Limits
from clients.conversation import Conversation, Outcome, Pause, Probe, Send, Step
from clients.errors import ClientError
from clients.request import Request
from clients.transports import AsyncTransport, open_async_transport
from clients.workload import OnError, RequestLike, Workload

T = TypeVar("T")


class AsyncHplmClient(ClientBase[AsyncTransport]):
    __doc__ = ClientBase.__doc__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        await self._transport.close()

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
        request = Request(hplm, text, text_pair, deadline_ms, level)
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
        workload = Workload(requests, self._rows_per_request, on_error, **limits)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(workload))):
                group.create_task(self._work(workload))
        return workload.outcomes()

    async def is_ready(self) -> bool:
        """Whether the server is up and serves hPLMs."""
        return await self._carry_out(self._speaker.probe())

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        await self._carry_out(self._speaker.wait_ready(timeout_s))

    def _open(self, address: Address) -> AsyncTransport:
        return open_async_transport(address)

    async def _work(self, workload: Workload) -> None:
        while chunk := workload.take():
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
        match step:
            case Send(call, timeout_s):
                return await self._transport.send(call, timeout_s)
            case Probe(timeout_s):
                return await self._transport.is_ready(timeout_s)
            case Pause(duration_s):
                await asyncio.sleep(duration_s)
                return None
