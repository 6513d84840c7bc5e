"""Errors as clients see them: code, HTTP status, and one line without internal details."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from backends.errors import (
    ConflictError,
    ErrorCode,
    ForbiddenError,
    HplmError,
    NotFoundError,
    StorageFullError,
    UnauthorisedError,
    UnavailableError,
    presentable,
)
from builder.manager.jobs import Failure
from builder.manager.quotas import QuotaError
from builder.manager.uploads import UploadTooLargeError

_KINDS: tuple[tuple[type[HplmError], str, HTTPStatus], ...] = (
    (ForbiddenError, "PERMISSION_DENIED", HTTPStatus.FORBIDDEN),
    (UnauthorisedError, "UNAUTHENTICATED", HTTPStatus.UNAUTHORIZED),
    (UploadTooLargeError, "TOO_LARGE", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (QuotaError, "TENANT_QUOTA", HTTPStatus.TOO_MANY_REQUESTS),
    (NotFoundError, "NOT_FOUND", HTTPStatus.NOT_FOUND),
    (ConflictError, "CONFLICT", HTTPStatus.CONFLICT),
    (StorageFullError, "STORAGE_FULL", HTTPStatus.INSUFFICIENT_STORAGE),
    (UnavailableError, "UNAVAILABLE", HTTPStatus.SERVICE_UNAVAILABLE),
)
_BY_CODE = {ErrorCode.INVALID_ARG: HTTPStatus.BAD_REQUEST, ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND}


def failure_of(error: Exception, shown_names: Mapping[str, str] | None = None) -> Failure:
    """Code and message; paths inside the home are replaced by the names that users know."""
    shown = presentable(error)
    return Failure(code=_code_and_status(shown)[0], message=with_shown_names(str(shown), shown_names or {}))


def with_shown_names(message: str, shown_names: Mapping[str, str]) -> str:
    """Replace paths by the names that users know."""
    for path, name in shown_names.items():
        message = message.replace(path, name)
    return message


def status_of(error: HplmError) -> HTTPStatus:
    return _code_and_status(error)[1]


def _code_and_status(error: HplmError) -> tuple[str, HTTPStatus]:
    for kind, code, status in _KINDS:
        if isinstance(error, kind):
            return code, status
    return error.code.value, _BY_CODE.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
