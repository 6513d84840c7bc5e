"""HTTP under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cached_property
from typing import Any, TypeVar

import aiohttp
import tritonclient.http.aio as triton

from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import MODEL_NAME, Call, inputs_of, rows_of
from hplm_client.errors import ConnectionFailedError, ConnectionLostError
from hplm_client.faults import one_line, readable, timed_out, typed_faults
from hplm_client.wrong_port import grpc_port, is_reply_of_grpc

T = TypeVar("T")


class AsyncHttpTransport:
    def __init__(self, address: Address, certificates: Certificates | None = None) -> None:
        self._place = address
        self._address = str(address)
        self._certificates = certificates

    @cached_property
    def _client(self) -> Any:
        """Belongs to the event loop in which it is made; the caller limits the requests under way."""
        context = self._certificates.context() if self._certificates is not None else None
        return triton.InferenceServerClient(
            self._address, conn_limit=0, conn_timeout=None, ssl=context is not None, ssl_context=context
        )

    async def send(self, call: Call, timeout_s: float) -> list[bytes]:
        inputs = inputs_of(call, triton.InferInput)
        infer = self._client.infer(
            MODEL_NAME, inputs, headers=call.headers, request_id=call.request_id, parameters=dict(call.parameters)
        )
        with readable(self._address):
            result = await self._limited(infer, timeout_s)
        return rows_of(result, call)

    async def is_ready(self, timeout_s: float) -> bool:
        return bool(await self._limited(self._client.is_model_ready(MODEL_NAME), timeout_s))

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.close()

    async def _limited(self, exchange: Awaitable[T], timeout_s: float) -> T:
        try:
            with typed_faults(self._address, timeout_s):
                return await asyncio.wait_for(exchange, timeout_s)
        except asyncio.TimeoutError as error:
            raise timed_out(timeout_s) from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise ConnectionFailedError(f"cannot connect to {self._address}: {reason}") from error
        except aiohttp.ClientError as error:
            if is_reply_of_grpc(error):
                raise grpc_port(self._place) from error
            reason = one_line(str(error))
            raise ConnectionLostError(f"the connection to {self._address} broke while waiting: {reason}") from error
