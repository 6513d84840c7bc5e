"""The SDK's blocking client for greenlets: a request that waits for its answer blocks no other.

HTTP needs nothing but the sockets that Locust has patched. gRPC waits in C, where no patch reaches. Its bridge to
gevent gives each blocking call one of ten threads, so ten slow requests would stop all others. Calls with a callback
share one thread for a whole channel. So requests are sent with a callback, and greenlets wait for it.
"""

from __future__ import annotations

import functools
from typing import Any

import tritonclient.grpc as triton
from gevent.event import AsyncResult
from grpc.experimental import gevent as grpc_gevent

from hplm_client import HplmClient
from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import MODEL_NAME, Call, inputs_of, rows_of
from hplm_client.transports import Transport, open_transport
from hplm_client.transports.grpc import channel_options, grpc_faults


class GreenletClient(HplmClient):
    """The SDK's client for any number of greenlets of one process."""

    def _open(self, address: Address, certificates: Certificates | None, connect_s: float | None) -> Transport:
        of_protocol = GreenletGrpcTransport if address.protocol == "grpc" else open_transport
        return of_protocol(address, certificates, connect_s)


class GreenletGrpcTransport:
    def __init__(
        self, address: Address, certificates: Certificates | None = None, connect_s: float | None = None
    ) -> None:
        _bridge_to_gevent()
        self._place = address
        self._has_answered = False
        encryption = certificates.for_grpc() if certificates is not None else {}
        self._client: Any = triton.InferenceServerClient(
            str(address), channel_args=channel_options(address, connect_s), **encryption
        )

    def send(self, call: Call, timeout_s: float) -> list[bytes]:
        answered: AsyncResult[tuple[Any, Exception | None]] = AsyncResult()
        with grpc_faults(self._place, timeout_s, self._has_answered):
            under_way = self._client.async_infer(
                MODEL_NAME,
                inputs_of(call, triton.InferInput),
                callback=lambda result, error: answered.set((result, error)),
                headers=call.headers,
                request_id=call.request_id,
                parameters=dict(call.parameters),
                client_timeout=timeout_s,
            )
            try:
                result, error = answered.get()
            except BaseException:  # the greenlet is killed
                under_way.cancel()
                raise
            if error is not None:
                raise error
        self._has_answered = True
        return rows_of(result, call)

    def is_ready(self, timeout_s: float) -> bool:
        with grpc_faults(self._place, timeout_s, self._has_answered):
            return bool(self._client.is_model_ready(MODEL_NAME, client_timeout=timeout_s))

    def close(self) -> None:
        self._client.close()
        self._client = None  # a channel that is left to the interpreter's end waits for a gevent that has gone


@functools.cache
def _bridge_to_gevent() -> None:
    """Let gRPC wait in gevent's threads; once, after Locust's patches and before the first channel."""
    grpc_gevent.init_gevent()
