"""gRPC with blocking calls; safe between threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tritonclient.grpc as triton

from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import MODEL_NAME, Call, inputs_of, rows_of
from hplm_client.errors import ConnectionFailedError, ConnectionLostError
from hplm_client.faults import typed_faults
from hplm_client.wrong_port import http_port, speaks_http

_ANY_SIZE = 2**31 - 1

# gRPC waits up to two minutes before it looks again for a server that was away; ours shall be found when it is back.
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _ANY_SIZE),
    ("grpc.max_receive_message_length", _ANY_SIZE),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]
_WITHOUT_PROXY = ("grpc.enable_http_proxy", 0)


def channel_options(address: Address, connect_s: float | None) -> list[tuple[str, int]]:
    """The options of a channel; a connection attempt takes at most `connect_s`, by default gRPC's own 20 s.

    A server of this machine is asked without the environment's proxy, which is for other machines.
    """
    limited = [("grpc.min_reconnect_backoff_ms", round(1000 * connect_s))] if connect_s else []
    return CHANNEL_OPTIONS + limited + ([_WITHOUT_PROXY] if address.is_loopback else [])


class GrpcTransport:
    def __init__(
        self, address: Address, certificates: Certificates | None = None, connect_s: float | None = None
    ) -> None:
        self._place = address
        self._address = str(address)
        self._has_answered = False
        encryption = certificates.for_grpc() if certificates is not None else {}
        self._client = triton.InferenceServerClient(
            self._address, channel_args=channel_options(address, connect_s), **encryption
        )

    def send(self, call: Call, timeout_s: float) -> list[bytes]:
        with grpc_faults(self._place, timeout_s, self._has_answered):
            result = self._client.infer(
                MODEL_NAME,
                inputs_of(call, triton.InferInput),
                headers=call.headers,
                request_id=call.request_id,
                parameters=dict(call.parameters),
                client_timeout=timeout_s,
            )
        self._has_answered = True
        return rows_of(result, call)

    def is_ready(self, timeout_s: float) -> bool:
        with grpc_faults(self._place, timeout_s, self._has_answered):
            return bool(self._client.is_model_ready(MODEL_NAME, client_timeout=timeout_s))

    def close(self) -> None:
        self._client.close()


@contextmanager
def grpc_faults(address: Address, timeout_s: float, has_answered: bool) -> Iterator[None]:
    """Turn what tritonclient raises into our errors; a port that has never answered may be one of HTTP."""
    try:
        with typed_faults(str(address), timeout_s):
            yield
    except (ConnectionFailedError, ConnectionLostError) as error:
        if not has_answered and speaks_http(address):
            raise http_port(address) from error
        raise
