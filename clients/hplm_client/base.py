"""The settings that the blocking and the asyncio client share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypedDict, TypeVar

from hplm_client.address import Address, Protocol, parse_address
from hplm_client.conversation import Speaker
from hplm_client.errors import ClientError
from hplm_client.limits import RetryPolicy, check_count

TransportT = TypeVar("TransportT")


class Limits(TypedDict, total=False):
    """Limits of one `infer_many`: a server-side deadline and a level for each request, a timeout for the whole call."""

    deadline_ms: int | None
    level: str | None
    timeout_s: float | None


class ClientBase(ABC, Generic[TransportT]):
    """The settings of a client.

    `token` is one token, or one for each tenant: `{"acme": "…"}`. `timeout_s` is for one request with all its retries;
    without it a request waits for its deadline and one second more, or 30 s where it has none. `concurrency` and
    `rows_per_request` are for `infer_many`.
    """

    def __init__(
        self,
        url: str,
        protocol: Protocol | None = None,
        *,
        token: str | Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        retries: int = 2,
        concurrency: int = 16,
        rows_per_request: int = 16,
    ) -> None:
        self._speaker = Speaker(RetryPolicy(retries), token, timeout_s)
        self._concurrency = check_count("concurrency", concurrency)
        self._rows_per_request = check_count("rows_per_request", rows_per_request)
        self._transport = self._open(parse_address(url, protocol))
        self._closed = False

    @abstractmethod
    def _open(self, address: Address) -> TransportT: ...

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("this client is closed")
