"""Fields of JSON that others wrote: types and bounds are checked as they are read, and the error names the field.

Usage:
    fields = read_fields(folder / "manifest.json", FORMAT_VERSION)
    size, labels = fields.whole("size_bytes"), fields.texts("labels")
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from backends.errors import CorruptFileError, FormatVersionError, shown
from backends.storage import read_json

MOST_WHOLE = 2**63 - 1


class Fields:
    """The fields of one JSON object; every read raises CorruptFileError where the field is missing or wrong.

    Args:
        content: The object.
        where: Names it in messages.
    """

    def __init__(self, content: object, where: str) -> None:
        if not isinstance(content, Mapping):
            raise CorruptFileError(f"{where} is {shown(content)}, not an object with fields")
        self._content: Mapping[str, Any] = content
        self.where = where

    def __contains__(self, name: object) -> bool:
        return name in self._content

    def names(self) -> Collection[str]:
        return self._content.keys()

    def value(self, name: str) -> Any:
        """Return a value of any type."""
        if name not in self._content:
            raise CorruptFileError(f"{self.where} lacks {name}")
        return self._content[name]

    def get(self, name: str) -> Any:
        """Return a value of any type; None where there is none."""
        return self._content.get(name)

    def text(self, name: str, known: Collection[str] | None = None) -> str:
        value = self.value(name)
        if not isinstance(value, str) or (known is not None and value not in known):
            self._reject(name, "a text" if known is None else f"one of {', '.join(known)}")
        return value

    def whole(self, name: str, least: int = 0, most: int = MOST_WHOLE) -> int:
        value = self.value(name)
        if type(value) is not int or not least <= value <= most:
            self._reject(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number; `least` and `most` are allowed."""
        value = self.value(name)
        if not _is_number(value) or not least <= value <= most:
            self._reject(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def positive(self, name: str) -> float:
        """Return a finite number above 0."""
        value = self.number(name, 0.0)
        if value == 0:
            self._reject(name, "above 0")
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if type(value) is not bool:
            self._reject(name, "true or false")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            self._reject(name, "a list of texts")
        return tuple(value)

    def numbers(self, name: str, count: int) -> list[tuple[float, ...]]:
        """Return a list of so many finite numbers each."""
        value = self.value(name)
        rows: Sequence[Any] = value if isinstance(value, list | tuple) else [None]
        if not all(isinstance(row, list | tuple) and len(row) == count and all(map(_is_number, row)) for row in rows):
            self._reject(name, f"a list of {count} numbers each")
        return [tuple(map(float, row)) for row in rows]

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of 0 or more."""
        value = self.value(name)
        rows: Sequence[Any] = value if isinstance(value, list | tuple) else [None]
        if not all(type(row) is int and 0 <= row <= MOST_WHOLE for row in rows):
            self._reject(name, f"a list of whole numbers from 0 to {MOST_WHOLE}")
        return tuple(rows)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object whose fields may be anything."""
        return self.part(name)._content

    def part(self, name: str) -> Fields:
        return Fields(self.value(name), f"{name} of {self.where}")

    def parts(self, name: str) -> list[Fields]:
        value = self.value(name)
        if not isinstance(value, list | tuple):
            self._reject(name, "a list")
        return [Fields(each, f"{name} of {self.where}") for each in value]

    def require_version(self, most: int) -> int:
        """Return the format's version, if this release reads it."""
        value = self.value("format_version")
        if type(value) is not int or not 1 <= value <= most:
            raise FormatVersionError(
                f"{self.where} has format version {shown(value)}; this release reads up to {most}, so upgrade it"
            )
        return value

    def _reject(self, name: str, wanted: str) -> NoReturn:
        raise CorruptFileError(f"{self.where}: {name} is {shown(self._content.get(name))}, not {wanted}")


def _is_number(value: object) -> bool:
    """Whether it is a finite number; those beyond `MOST_WHOLE` may be no floats, and are of no use."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_WHOLE


def read_fields(path: Path, most_version: int) -> Fields:
    """Read a file of `write_json`, and check its format version.

    Raises:
        FileError: It is damaged, or of a newer format.
    """
    fields = Fields(read_json(path), str(path))
    fields.require_version(most_version)
    return fields
