"""One row to be answered, checked before anything is sent."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass

from hplm_client.errors import InvalidRequestError
from hplm_client.limits import check_deadline

# The ID also travels as an HTTP header: visible ASCII only. The server decides which IDs exist.
_HPLM_ID = re.compile(r"[!-.0-~]+/[!-.0-~]+")
_SEPARATOR = "\t"


@dataclass(frozen=True)
class Request:
    """One text for one hPLM.

    A TAB inside a single text is sent as a space: on the wire a TAB separates the two texts of a pair. Character
    offsets do not change.
    """

    hplm: str
    text: str
    text_pair: str | None = None
    deadline_ms: int | None = None
    level: str | None = None

    def __post_init__(self) -> None:
        self._check_id()
        self._check_text("text", self.text)
        if self.text_pair is not None:
            self._check_text("text_pair", self.text_pair)
            self._check_pair()
        self._check_parameters()

    @property
    def tenant(self) -> str:
        return self.hplm.partition("/")[0]

    @property
    def wire_text(self) -> bytes:
        """The row of TEXT."""
        if self.text_pair is None:
            return self.text.replace(_SEPARATOR, " ").encode()
        return f"{self.text}{_SEPARATOR}{self.text_pair}".encode()

    def _check_id(self) -> None:
        if not isinstance(self.hplm, str) or not _HPLM_ID.fullmatch(self.hplm):
            raise InvalidRequestError(f"an hPLM's ID has the form tenant/name; {_short(self.hplm)} has not")

    def _check_text(self, name: str, text: object) -> None:
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} must be a str, not {type(text).__name__}", self.hplm)
        if not text.strip():
            raise InvalidRequestError(f"{name} is empty", self.hplm)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"{name} is not valid Unicode: a lone surrogate at character {error.start}"
            raise InvalidRequestError(message, self.hplm) from error

    def _check_pair(self) -> None:
        if _SEPARATOR in f"{self.text}{self.text_pair}":
            raise InvalidRequestError("neither text of a pair may contain a TAB, which separates them", self.hplm)

    def _check_parameters(self) -> None:
        check_deadline(self.deadline_ms, self.hplm)
        if self.level is not None and (not isinstance(self.level, str) or not self.level):
            raise InvalidRequestError(f"level must be a non-empty str, not {_short(self.level)}", self.hplm)


def _short(value: object) -> str:
    return reprlib.repr(value)[:80]
