"""The errors that users meet, each with the code that it travels under.

One line each, naming what is wrong and with what; the command line prints the line and the server sends it.
"""

from __future__ import annotations

import logging
import re
import reprlib
import unicodedata
from enum import StrEnum

LOGGER = logging.getLogger(__name__)
_SHOWN_CHARACTERS = 200
_LONGEST_MESSAGE = 2_000
"""Messages travel in headers, and stand in logs."""
_NOT_A_NUMBER = "gave a result that is not a number"


class ErrorCode(StrEnum):
    """Codes of the wire contract; Triton maps them to gRPC and HTTP statuses."""

    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class HplmError(Exception):
    """Root of all errors that this project raises on purpose.

    Its message is one line of printable Unicode, and cut where it is long, whatever of a bad input it quotes.
    """

    code = ErrorCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class NotFoundError(HplmError):
    code = ErrorCode.NOT_FOUND


class InvalidArgumentError(HplmError):
    code = ErrorCode.INVALID_ARG


class UnauthorisedError(HplmError):
    """The caller's token is no good. Triton 24.10 has no status for it, so clients know it by its first word."""

    code = ErrorCode.INVALID_ARG

    def __init__(self, message: str) -> None:
        super().__init__(f"unauthorised: {message}")


class ForbiddenError(UnauthorisedError):
    """The caller's token is good, but not for this."""


class UnavailableError(HplmError):
    code = ErrorCode.UNAVAILABLE


class ConflictError(HplmError):
    """The object exists already, or another build is at work on it."""

    code = ErrorCode.INVALID_ARG


class LockedError(ConflictError):
    """Another process or thread holds a lock."""


class WorseError(ConflictError):
    """A new version is worse than the one that it would replace."""


class TargetMissedError(HplmError):
    """The best that there is stays below what was asked for."""


class FileError(HplmError):
    """A stored file cannot be used. The message names the file, so it is for operators: see `presentable`."""

    complaint: str


class CorruptFileError(FileError):
    """A file is truncated, its bytes differ from its checksum, or it is a file of another kind."""

    complaint = "damaged"


class UnreadableFileError(FileError):
    """The disk or the file system fails to read a file."""

    code = ErrorCode.UNAVAILABLE
    complaint = "unreadable at present"


class FingerprintMismatchError(FileError):
    """An artefact was made for another root than the one it is used with."""

    code = ErrorCode.INVALID_ARG
    complaint = "made for another root"


class OtherStudentsError(FingerprintMismatchError):
    """An artefact was made for another set of its root's students, as that was replaced."""

    complaint = "made for other students of its root"


class FormatVersionError(FileError):
    """A file was written by a newer version of this project."""

    code = ErrorCode.INVALID_ARG
    complaint = "in the format of a newer release"


class NotANumberError(HplmError):
    """The weights of an hPLM overflow."""

    def __init__(self, hplm: str) -> None:
        super().__init__(f"hPLM {hplm!r} {_NOT_A_NUMBER}")


class UnusableError(HplmError):
    """A `FileError` as clients see it, without the server's paths."""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code


class StorageFullError(HplmError):
    """The disk filled up while something was being written."""

    code = ErrorCode.UNAVAILABLE


class NotWritableError(HplmError):
    """A file or folder that this program has to write is read-only, or not this user's; the message says what to do."""


class TrainingDataError(InvalidArgumentError):
    """A training file cannot be used; the message says where."""


def _one_line(message: str) -> str:
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    if message.isprintable():
        return message
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip())
    return "".join(_escaped(character) for character in lines)[:_LONGEST_MESSAGE]


def _escaped(character: str) -> str:
    """Escape what ends lines, moves cursors, or cannot be encoded."""
    return ascii(character)[1:-1] if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") else character


def shown(value: object) -> str:
    """A user's value as it may stand in a message: quoted, and short, because messages travel in headers."""
    if not isinstance(value, str):
        return reprlib.repr(value)  # of some levels and some elements only
    return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…")


_FILE_ERRORS: tuple[type[FileError], ...] = (
    CorruptFileError,
    UnreadableFileError,
    FingerprintMismatchError,
    OtherStudentsError,
    FormatVersionError,
)
_COMPLAINTS = "|".join(kind.complaint for kind in _FILE_ERRORS)
_OF_ONE_HPLM = re.compile(rf"\bthis hPLM\b.* (is|are) ({_COMPLAINTS})$|\b{_NOT_A_NUMBER}$")


def is_of_one_hplm(message: str) -> bool:
    """Whether an error is about the files or weights of the hPLM that was asked; others may be answered."""
    return _OF_ONE_HPLM.search(message) is not None


def presentable(error: Exception, what: str = "a file behind this request is") -> HplmError:
    """The error as a remote user may see it: ours as it is, of a defect only its kind, the rest goes to the log.

    Of the server's files it tells only what is wrong with `what`: their paths name folders and other customers.
    """
    if isinstance(error, FileError):
        LOGGER.error("%s: %s", type(error).__name__, error)
        return UnusableError(f"{what} {error.complaint}", error.code)
    if isinstance(error, HplmError):
        return error
    LOGGER.error("unexpected %s", type(error).__name__, exc_info=error)
    return HplmError(f"the server failed on this request: {type(error).__name__}")
