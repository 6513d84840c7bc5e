"""The settings that the blocking and the asyncio client share."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from hplm_client import environment
from hplm_client.address import Address, Protocol, Urls, parse_addresses
from hplm_client.certificates import Certificates, Ssl, certificates_of
from hplm_client.choice import Choice
from hplm_client.conversation import Speaker
from hplm_client.errors import ClosedError, InvalidRequestError
from hplm_client.limits import RetryBudget, RetryPolicy, check_count, check_deadline
from hplm_client.request import Request
from hplm_client.workload import OnError, RequestLike, Workload

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

TransportT = TypeVar("TransportT")
_CONNECT_S = 2.0
"""Time for a connection where another server may answer instead."""


class Options(TypedDict, total=False):
    """Settings of a client that `with_options` changes."""

    timeout_s: float | None
    deadline_ms: int | None
    retries: int
    token: str | Mapping[str, str] | None
    concurrency: int
    rows_per_request: int


class Limits(TypedDict, total=False):
    """Limits of one `infer_many`: a server-side deadline and a level for each request, a timeout for the whole call."""

    deadline_ms: int | None
    level: str | None
    timeout_s: float | None


class ClientBase(ABC, Generic[TransportT]):
    """The settings of a client.

    `url` names a server or a gateway; several that answer alike in a sequence, or with commas: `grpc://a:8001,b:8001`.
    Each tenant's requests go to the first that answers, and stay there while it works. A server that fails is left out
    for a moment, and what it surely did not execute goes to the next one at once.

    Left out, `url`, `token`, `timeout_s` and `deadline_ms` come from HPLM_URL, HPLM_TOKEN (or the file that
    HPLM_TOKEN_FILE names), HPLM_TIMEOUT and HPLM_DEADLINE; without HPLM_URL it is localhost:8001.

    `token` is one token, or one for each tenant: `{"acme": "…"}`. `timeout_s` is for one request with all its
    retries; without it a request waits for its deadline and one second more, or 30 s where it has none.
    `deadline_ms` is for requests that name none. `ssl` encrypts the connection: True, the path of a file with the
    authorities to trust, or `Certificates`; left out, as HPLM_CA, HPLM_CERT and HPLM_KEY say, which name files.
    `concurrency` and `rows_per_request` are for `infer_many`.
    """

    def __init__(
        self,
        url: Urls | None = None,
        protocol: Protocol | None = None,
        *,
        ssl: Ssl | None = None,
        token: str | Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        deadline_ms: int | None = None,
        retries: int = 2,
        concurrency: int = 16,
        rows_per_request: int = 16,
    ) -> None:
        addresses = parse_addresses(environment.url() if url is None or url == "" else url, protocol)
        self._choice = Choice(len(addresses))
        self._budget = RetryBudget()
        self._set_options(
            {
                "timeout_s": environment.timeout_s() if timeout_s is None else timeout_s,
                "deadline_ms": environment.deadline_ms() if deadline_ms is None else deadline_ms,
                "retries": retries,
                "token": environment.token() if token is None else token,
                "concurrency": concurrency,
                "rows_per_request": rows_per_request,
            }
        )
        certificates = certificates_of(environment.ssl() if ssl is None else ssl)
        connect_s = _CONNECT_S if len(addresses) > 1 else None
        self._transports = [self._open(address, certificates, connect_s) for address in addresses]
        self._closed = threading.Event()

    def with_options(self, **changes: Unpack[Options]) -> Self:
        """Return a client with other settings on the same connections; closing either closes both."""
        if unknown := sorted({*changes} - {*self._options}):
            raise TypeError(f"with_options() got an unexpected keyword argument {unknown[0]!r}")
        changed = copy.copy(self)
        changed._set_options({**self._options, **changes})
        return changed

    def _set_options(self, options: Options) -> None:
        check_deadline(options["deadline_ms"])
        _check_token(options["token"])
        self._options = options
        self._speaker = Speaker(
            RetryPolicy(options["retries"]), options["token"], options["timeout_s"], self._budget, self._choice
        )
        self._deadline_ms = options["deadline_ms"]
        self._concurrency = check_count("concurrency", options["concurrency"])
        self._rows_per_request = check_count("rows_per_request", options["rows_per_request"])

    def _request(
        self, hplm: str, text: str, text_pair: str | None, deadline_ms: int | None, level: str | None
    ) -> Request:
        return Request(hplm, text, text_pair, self._deadline_ms if deadline_ms is None else deadline_ms, level)

    def _workload(self, requests: Iterable[RequestLike], on_error: OnError, limits: Limits) -> Workload:
        if limits.get("deadline_ms") is None:
            limits = {**limits, "deadline_ms": self._deadline_ms}
        return Workload(requests, self._rows_per_request, on_error, self._concurrency, **limits)

    @abstractmethod
    def _open(self, address: Address, certificates: Certificates | None, connect_s: float | None) -> TransportT:
        """Make the way to a server, which is to answer a connection attempt within `connect_s`."""

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("this client is closed")


def _check_token(token: object) -> None:
    tokens = token.values() if isinstance(token, Mapping) else [] if token is None else [token]
    for one in tokens:
        if not isinstance(one, str):
            raise InvalidRequestError(f"a token is a str, or a str for each tenant, not {type(one).__name__}")
