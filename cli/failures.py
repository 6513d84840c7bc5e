"""Errors as the command line reports them: a code, one line, and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from typer.exceptions import TyperException

from backends.errors import (
    ConflictError,
    FileError,
    HplmError,
    InvalidArgumentError,
    NotFoundError,
    StorageFullError,
    TargetMissedError,
    UnavailableError,
    WorseError,
)
from builder.requests.base import one_line
from cli import exit_codes
from hplm_client import (
    ClientError,
    ConnectionFailedError,
    ConnectionLostError,
    InvalidRequestError,
    RequestTimeoutError,
    WrongPortError,
)
from hplm_client import NotFoundError as UnknownHplmError
from hplm_client import UnavailableError as RejectedError
from loadtest.errors import MissingError, OccupiedError, RunError
from workload.errors import WorkloadError

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (WorseError, exit_codes.THRESHOLD_MISSED),
    (TargetMissedError, exit_codes.THRESHOLD_MISSED),
    (ConflictError, exit_codes.CONFLICT),
    (FileExistsError, exit_codes.CONFLICT),
    (NotFoundError, exit_codes.NOT_FOUND),
    (UnknownHplmError, exit_codes.NOT_FOUND),
    (FileNotFoundError, exit_codes.NOT_FOUND),
    (MissingError, exit_codes.NOT_FOUND),
    (OccupiedError, exit_codes.CONFLICT),
    (InvalidArgumentError, exit_codes.USAGE),
    (InvalidRequestError, exit_codes.USAGE),
    (WrongPortError, exit_codes.USAGE),
    (WorkloadError, exit_codes.USAGE),
    (ValidationError, exit_codes.USAGE),
    (TyperException, exit_codes.USAGE),
    (UnavailableError, exit_codes.UNAVAILABLE),
    (StorageFullError, exit_codes.UNAVAILABLE),
    (RejectedError, exit_codes.UNAVAILABLE),
    (ConnectionFailedError, exit_codes.UNAVAILABLE),
    (ConnectionLostError, exit_codes.UNAVAILABLE),
    (RequestTimeoutError, exit_codes.UNAVAILABLE),
    (FileError, exit_codes.DAMAGED),
)
_CODES = {
    exit_codes.FAILED: "FAILED",
    exit_codes.USAGE: "USAGE",
    exit_codes.NOT_FOUND: "NOT_FOUND",
    exit_codes.CONFLICT: "CONFLICT",
    exit_codes.UNAVAILABLE: "UNAVAILABLE",
    exit_codes.DAMAGED: "DAMAGED",
    exit_codes.THRESHOLD_MISSED: "THRESHOLD_MISSED",
}


@dataclass(frozen=True)
class Failure:
    """One line for the user; `hint` is what to do about it, where the line says so after a semicolon.

    A server's rejection has no hint, but `rejection_facts`.
    """

    exit_code: int
    message: str
    rejection: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        message, _, hint = (self.message, "", "") if self.rejection else self.message.partition("; ")
        described = {"code": _CODES[self.exit_code], "message": message, "hint": hint or None}
        return {**described, "exit_code": self.exit_code, **self.rejection}


def described(error: Exception) -> Failure | None:
    """Describe an error that is no defect of ours; None for a defect."""
    message = _message(error)
    if message is None:
        return None
    exit_code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), exit_codes.FAILED)
    return Failure(exit_code, message, rejection_facts(error))


def rejection_facts(error: Exception) -> dict[str, Any]:
    """Return what a server says of a rejection beside the message; nothing of another error."""
    if not isinstance(error, RejectedError) or error.reason is None:
        return {}
    retry_after_ms = None if error.retry_after_s is None else round(1000 * error.retry_after_s)
    return {"reason": error.reason, "retry_after_ms": retry_after_ms}


def _message(error: Exception) -> str | None:
    if isinstance(error, ValidationError):
        return one_line(error)
    if isinstance(error, TyperException):
        return _usage_error(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, ConnectionFailedError):
        return f"{error}; --url or HPLM_URL names another server"
    if isinstance(error, UnknownHplmError) and str(error).startswith("hPLM "):
        return f"{error}; hplm list shows those there are"
    known = HplmError | ClientError | RunError | WorkloadError
    return str(error) if isinstance(error, known) else None


def _usage_error(error: TyperException) -> str:
    """Say what is wrong with the command line; nothing where the help has been printed in its place."""
    message = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's own words
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"{message}; try {command} --help" if message and command else message
