"""HTTP under asyncio."""

from __future__ import annotations

import asyncio
import time
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
from hplm_client.transports.one_loop import OneLoop
from hplm_client.wrong_port import grpc_port, is_reply_of_grpc

T = TypeVar("T")


class AsyncHttpTransport:
    def __init__(
        self, address: Address, certificates: Certificates | None = None, connect_s: float | None = None
    ) -> None:
        self._place = address
        self._address = str(address)
        self._certificates = certificates
        self._connect_s = connect_s
        self._has_answered = False
        self._loop = OneLoop()

    @cached_property
    def _client(self) -> Any:
        """Belongs to the event loop in which it is made; the caller limits the requests under way."""
        context = self._certificates.context() if self._certificates is not None else None
        return triton.InferenceServerClient(
            self._address, conn_limit=0, conn_timeout=None, ssl=context is not None, ssl_context=context
        )

    async def send(self, call: Call, timeout_s: float) -> list[bytes]:
        self._loop.check()
        timeout_s -= await self._try_connection(timeout_s)
        inputs = inputs_of(call, triton.InferInput)
        infer = self._client.infer(
            MODEL_NAME, inputs, headers=call.headers, request_id=call.request_id, parameters=dict(call.parameters)
        )
        with readable(self._address):
            result = await self._limited(infer, timeout_s)
        self._has_answered = True
        return rows_of(result, call)

    async def _try_connection(self, timeout_s: float) -> float:
        """Find out whether a server that has yet to answer, or did not lately, is there; return the seconds it took.

        Tritonclient has no limit of its own for connecting.
        """
        if self._connect_s is None or self._has_answered:
            return 0.0
        started_at = time.monotonic()
        try:
            connecting = asyncio.open_connection(self._place.host, self._place.port)
            _, writer = await asyncio.wait_for(connecting, min(timeout_s, self._connect_s))
        except asyncio.TimeoutError as error:
            raise ConnectionFailedError(f"cannot connect to {self._address}: timed out") from error
        except OSError as error:
            raise ConnectionFailedError(f"cannot connect to {self._address}: {error.strerror or error}") from error
        writer.close()
        return time.monotonic() - started_at

    async def is_ready(self, timeout_s: float) -> bool:
        self._loop.check()
        return bool(await self._limited(self._client.is_model_ready(MODEL_NAME), timeout_s))

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.close()

    async def _limited(self, exchange: Awaitable[T], timeout_s: float) -> T:
        try:
            with typed_faults(self._address, timeout_s):
                return await asyncio.wait_for(exchange, timeout_s)
        except asyncio.TimeoutError as error:
            self._has_answered = False
            raise timed_out(timeout_s) from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise ConnectionFailedError(f"cannot connect to {self._address}: {reason}") from error
        except aiohttp.ClientError as error:
            if is_reply_of_grpc(error):
                raise grpc_port(self._place) from error
            reason = one_line(str(error))
            raise ConnectionLostError(f"the connection to {self._address} broke while waiting: {reason}") from error
