"""Errors of a request, one type for each cause; every message is one line."""

from __future__ import annotations

from typing import ClassVar


class ClientError(Exception):
    """Root of all errors of this package.

    `may_repeat` says that the request was certainly not executed and that sending it again may help. `hplm` and
    `request_id` say which request it is about, where it is about one that was sent.
    """

    code: ClassVar[str] = "UNKNOWN"
    may_repeat: ClassVar[bool] = False

    def __init__(self, message: str, hplm: str | None = None) -> None:
        super().__init__(message, hplm)
        self.message = message
        self.hplm = hplm
        self.request_id: str | None = None

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"


class ClosedError(ClientError):
    """The client was closed before."""

    code = "CLOSED"


class InvalidRequestError(ClientError):
    """The request can never be answered as it is; found here or by the server."""

    code = "INVALID_ARG"


class WrongPortError(ClientError):
    """The port speaks another protocol than it was asked in."""

    code = "WRONG_PORT"


class NotFoundError(ClientError):
    """The server knows no such hPLM."""

    code = "NOT_FOUND"


class PermissionDeniedError(ClientError):
    """The token is no good, or a gateway or a restricted server rejected the caller."""

    code = "PERMISSION_DENIED"


class UnavailableError(ClientError):
    """The server rejected the request for now: its deadline cannot be met or was missed, or the queue is full.

    `reason` is the server's word for it, such as `queue_full` or `predicted_late`. `retry_after_s` says when the same
    request, with a deadline of the same length, may be answered. Both are None where the server gave none.
    """

    code = "UNAVAILABLE"

    def __init__(
        self, message: str, hplm: str | None = None, reason: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hplm)
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def is_about_room(self) -> bool:
        """Whether too many rows waited; a deadline that cannot be met comes no nearer by waiting."""
        return self.reason in ("queue_full", "tenant_quota", "tenant_share")


class NotReadyError(UnavailableError):
    """The server is starting or stopping, or does not serve hPLMs yet."""

    may_repeat = True


class RequestTimeoutError(ClientError):
    """No answer came within the client's timeout; the server may still be at work."""

    code = "TIMEOUT"


class RequestCancelledError(ClientError):
    """The request was cancelled, by the server or by closing the client."""

    code = "CANCELLED"


class ConnectionLostError(ClientError):
    """The connection broke while the request was under way; it may have been executed."""

    code = "CONNECTION_LOST"


class ConnectionFailedError(ClientError):
    """No connection could be made; the request was never sent."""

    code = "CONNECTION_FAILED"
    may_repeat = True


class ServerError(ClientError):
    """The server failed, or its answer does not follow the wire contract."""

    code = "INTERNAL"
