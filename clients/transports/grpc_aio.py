"""gRPC under asyncio; cancelling a task cancels its request on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import tritonclient.grpc.aio as triton

from clients.address import Address
from clients.codec import MODEL_NAME, Call, inputs_of, rows_of
from clients.errors import RequestCancelledError
from clients.faults import typed_faults
from clients.transports.grpc import CHANNEL_OPTIONS


class AsyncGrpcTransport:
    def __init__(self, address: Address) -> None:
        self._address = str(address)

    @cached_property
    def _client(self) -> Any:
        """Belongs to the event loop in which it is made."""
        return triton.InferenceServerClient(self._address, channel_args=CHANNEL_OPTIONS)

    async def send(self, call: Call, timeout_s: float) -> list[bytes]:
        with typed_faults(self._address, timeout_s), _closing_is_an_error():
            result = await self._client.infer(
                MODEL_NAME,
                inputs_of(call, triton.InferInput),
                headers=call.headers,
                parameters=dict(call.parameters),
                client_timeout=timeout_s,
            )
        return rows_of(result, call)

    async def is_ready(self, timeout_s: float) -> bool:
        with typed_faults(self._address, timeout_s), _closing_is_an_error():
            return bool(await self._client.is_model_ready(MODEL_NAME, client_timeout=timeout_s))

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.close()


@contextmanager
def _closing_is_an_error() -> Iterator[None]:
    """A closed channel raises what asyncio reserves for cancelled tasks; only those may go on seeing it."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RequestCancelledError("the client was closed while waiting for the answer") from None
