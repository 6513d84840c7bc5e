"""HTTP under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import aiohttp
import tritonclient.http.aio as triton

from clients.address import Address
from clients.codec import MODEL_NAME, Call, inputs_of, rows_of
from clients.errors import ConnectionFailedError, ConnectionLostError
from clients.faults import one_line, readable, timed_out, typed_faults


class AsyncHttpTransport:
    def __init__(self, address: Address) -> None:
        self._address = str(address)

    @cached_property
    def _client(self) -> Any:
        """Belongs to the event loop in which it is made; how many requests are under way is the caller's to say."""
        return triton.InferenceServerClient(self._address, conn_limit=0, conn_timeout=None)

    async def send(self, call: Call, timeout_s: float) -> list[bytes]:
        inputs = inputs_of(call, triton.InferInput)
        async with self._limited(timeout_s):
            with readable(self._address):
                result = await self._client.infer(
                    MODEL_NAME, inputs, headers=call.headers, parameters=dict(call.parameters)
                )
        return rows_of(result, call)

    async def is_ready(self, timeout_s: float) -> bool:
        async with self._limited(timeout_s):
            return bool(await self._client.is_model_ready(MODEL_NAME))

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.close()

    @asynccontextmanager
    async def _limited(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            with typed_faults(self._address, timeout_s):
                async with asyncio.timeout(timeout_s):
                    yield
        except TimeoutError as error:
            raise timed_out(timeout_s) from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise ConnectionFailedError(f"cannot connect to {self._address}: {reason}") from error
        except aiohttp.ClientError as error:
            reason = one_line(str(error))
            raise ConnectionLostError(f"the connection to {self._address} broke while waiting: {reason}") from error
