"""Translation of the transports' reports, a gRPC or HTTP status and a text, into our errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tritonclient.utils import InferenceServerException

from hplm_client.errors import (
    ClientError,
    ConnectionFailedError,
    ConnectionLostError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    PermissionDeniedError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerError,
    UnavailableError,
    WrongPortError,
)

_LONGEST_MESSAGE_CHARS = 500
_METHOD_NOT_ALLOWED = "405"

_BY_STATUS: dict[str, type[ClientError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "NOT_FOUND": NotFoundError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "UNAUTHENTICATED": PermissionDeniedError,
    "UNAVAILABLE": UnavailableError,
    "RESOURCE_EXHAUSTED": UnavailableError,
    "DEADLINE_EXCEEDED": RequestTimeoutError,
    "CANCELLED": RequestCancelledError,
    "400": InvalidRequestError,
    "413": InvalidRequestError,
    "404": NotFoundError,
    "401": PermissionDeniedError,
    "403": PermissionDeniedError,
    "429": UnavailableError,
    "503": UnavailableError,
    "408": RequestTimeoutError,
    "504": RequestTimeoutError,
}

# Triton, gRPC and a draining server say some things only in words. Matched from the start, so that no text of a tenant
# can imitate them.
_BY_WORDS: tuple[tuple[re.Pattern[str], type[ClientError]], ...] = (
    (re.compile(r"failed to connect|errors resolving|DNS resolution|name resolution", re.I), ConnectionFailedError),
    (re.compile(r"stream removed|socket closed|connection reset|recvmsg|broken pipe", re.I), ConnectionLostError),
    (re.compile(r"goaway|keepalive|transport closed|endpoint read failed", re.I), ConnectionLostError),
    (re.compile(r"upstream connect error", re.I), ConnectionLostError),  # Envoy's words, and the next line's
    (re.compile(r"request for unknown model|server not ready|no healthy upstream", re.I), NotReadyError),
    (re.compile(r"cancelled$", re.I), ConnectionLostError),  # by a server that ends; whoever cancels knows it already
    (re.compile(r"this (protocol|api) is restricted", re.I), PermissionDeniedError),
    (re.compile(r"this is the health port", re.I), WrongPortError),
)
_UNAUTHORISED = re.compile("unauthorised: ")
_STOPPING = re.compile("server is stopping", re.I)
_FACTS = re.compile(r"\s*(\{\"reason\": \"\w+\", \"retry_after_ms\": \d{1,12}\})\s*$")
_PREFIX = re.compile(
    r"^(in ensemble '[^']*', |\[request id: [^\]]*\] |Failed to process the request\(s\) for model '[^']*', message: )+"
)


def from_status(status: str, message: str | None, address: str) -> ClientError:
    """The error for a gRPC status name or an HTTP status number; without a message, it does not come from Triton."""
    if status == _METHOD_NOT_ALLOWED:
        said = "" if message is None else f" ({one_line(message)})"
        return WrongPortError(f"{address} takes no requests{said}; is it the port of metrics? HTTP is 8000 by default")
    if message is None:
        kind = ServerError if status == "404" else _BY_STATUS.get(status, ServerError)
        return kind(f"{address} answered with status {status} and no reason; is it a Triton server?")
    kind = _by_words(message) or _BY_STATUS.get(status, ServerError)
    if kind is UnavailableError:
        return _rejection(message)
    if kind is ConnectionFailedError:
        return ConnectionFailedError(f"cannot connect to {address}: {_why_unconnected(message)}")
    if kind is ConnectionLostError:
        return ConnectionLostError(f"the connection to {address} broke while waiting: {one_line(message)}")
    return kind(one_line(message))


def _why_unconnected(message: str) -> str:
    if "certificate_verify_failed" in message.lower():
        return "its certificate is signed by none that is trusted here (ssl=, HPLM_CA)"
    if "handshake failed" in message.lower() or "wrong_version_number" in message.lower():
        return "it does not speak TLS, or not with this certificate (ssl=, HPLM_CA, HPLM_CERT)"
    reason = one_line(message.rpartition(": ")[2].rstrip("]"))
    if reason == "Socket closed":
        return (
            "it closed the connection at once; a server with TLS does, of a client without (ssl=, HPLM_CA, HPLM_CERT)"
        )
    return reason


def _rejection(message: str) -> UnavailableError:
    """Read the facts that the server writes behind the message of a rejection."""
    found = _FACTS.search(message)
    if found is None:
        return UnavailableError(one_line(message))
    facts = json.loads(found[1])
    return UnavailableError(
        one_line(message[: found.start()]), reason=facts["reason"], retry_after_s=facts["retry_after_ms"] / 1000
    )


def one_line(message: str) -> str:
    """The first line without what Triton puts before it."""
    lines = (line.strip() for line in _PREFIX.sub("", message.strip()).splitlines())
    return (
        next(filter(None, lines), "the server gave no reason")[:_LONGEST_MESSAGE_CHARS]
        .encode(errors="replace")
        .decode()
    )


@contextmanager
def typed_faults(address: str, timeout_s: float) -> Iterator[None]:
    """Turn what tritonclient raises into our errors."""
    try:
        yield
    except InferenceServerException as error:
        raise _from_triton(error, address, timeout_s) from error


@contextmanager
def readable(address: str) -> Iterator[None]:
    """Check that a good status came with an answer: it may be the page of a proxy."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(f"the answer of {address} cannot be read; is it a Triton server?") from error


def timed_out(timeout_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(f"no answer within {timeout_s:.3g} s")


def _from_triton(error: InferenceServerException, address: str, timeout_s: float) -> ClientError:
    status = (error.status() or "").removeprefix("StatusCode.")
    if status == "DEADLINE_EXCEEDED":
        return timed_out(timeout_s)
    unreadable = status.isdigit() and error.debug_details() is not None
    return from_status(status, None if unreadable else error.message(), address)


def _by_words(message: str) -> type[ClientError] | None:
    said = _PREFIX.sub("", message)
    if _UNAUTHORISED.match(said):
        return PermissionDeniedError
    if _STOPPING.match(said):
        return NotReadyError
    return next((kind for words, kind in _BY_WORDS if words.match(message)), None)
