"""gRPC under asyncio. A task that is cancelled waits no longer; the server still answers what it asked.

Triton 24.10 may die of a request that is cancelled at the moment of its answer, and saves next to nothing by others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any

import tritonclient.grpc.aio as triton

from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import MODEL_NAME, Call, inputs_of, rows_of
from hplm_client.errors import ConnectionFailedError, ConnectionLostError, RequestCancelledError
from hplm_client.faults import typed_faults
from hplm_client.transports.grpc import channel_options
from hplm_client.transports.one_loop import OneLoop
from hplm_client.wrong_port import http_port, speaks_http


class AsyncGrpcTransport:
    def __init__(
        self, address: Address, certificates: Certificates | None = None, connect_s: float | None = None
    ) -> None:
        self._options = channel_options(address, connect_s)
        self._place = address
        self._address = str(address)
        self._encryption = certificates.for_grpc() if certificates is not None else {}
        self._has_answered = False
        self._is_closed = False
        self._loop = OneLoop()
        self._under_way = set[asyncio.Task[Any]]()

    @cached_property
    def _client(self) -> Any:
        """Belongs to the event loop in which it is made."""
        return triton.InferenceServerClient(self._address, channel_args=self._options, **self._encryption)

    async def send(self, call: Call, timeout_s: float) -> list[bytes]:
        self._loop.check()
        async with self._faults(timeout_s):
            result = await self._uncancelled(
                self._client.infer(
                    MODEL_NAME,
                    inputs_of(call, triton.InferInput),
                    headers=call.headers,
                    request_id=call.request_id,
                    parameters=dict(call.parameters),
                    client_timeout=timeout_s,
                )
            )
        self._has_answered = True
        return rows_of(result, call)

    async def is_ready(self, timeout_s: float) -> bool:
        self._loop.check()
        async with self._faults(timeout_s):
            return bool(await self._client.is_model_ready(MODEL_NAME, client_timeout=timeout_s))

    async def _uncancelled(self, asking: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(asking)
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    @asynccontextmanager
    async def _faults(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            with typed_faults(self._address, timeout_s), self._closing_is_an_error():
                yield
        except (ConnectionFailedError, ConnectionLostError) as error:
            if not self._has_answered and await _in_thread(speaks_http, self._place):
                raise http_port(self._place) from error
            raise

    async def close(self) -> None:
        self._is_closed = True
        if "_client" in self.__dict__:
            await self._client.close()

    @contextmanager
    def _closing_is_an_error(self) -> Iterator[None]:
        """Tell a closed channel from a cancelled task: gRPC raises the same exception for both."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_closed or _is_task_cancelled():
                raise
            raise RequestCancelledError("the client was closed while waiting for the answer") from None


async def _in_thread(function: Callable[[Address], bool], address: Address) -> bool:
    return await asyncio.get_running_loop().run_in_executor(None, function, address)


def _is_task_cancelled() -> bool:
    """Return whether the running task was cancelled; before Python 3.11 a task does not tell, and the answer is no."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0
