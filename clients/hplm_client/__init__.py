"""The typed client of an hPLM server; needs nothing but tritonclient.

Usage:
    with HplmClient("localhost:8001") as client:
        answer = client.infer("acme/returns", "It arrived broken.", deadline_ms=50)
"""

from hplm_client.aio import AsyncHplmClient
from hplm_client.answers import Answer, Classification, Entities, Entity, Value
from hplm_client.certificates import Certificates
from hplm_client.client import HplmClient
from hplm_client.errors import (
    ClientError,
    ClosedError,
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
from hplm_client.request import Request

__all__ = [
    "Answer",
    "AsyncHplmClient",
    "Certificates",
    "Classification",
    "ClientError",
    "ClosedError",
    "ConnectionFailedError",
    "ConnectionLostError",
    "Entities",
    "Entity",
    "HplmClient",
    "InvalidRequestError",
    "NotFoundError",
    "NotReadyError",
    "PermissionDeniedError",
    "Request",
    "RequestCancelledError",
    "RequestTimeoutError",
    "ServerError",
    "UnavailableError",
    "Value",
    "WrongPortError",
]
