"""Rows as a damaged database file may have them: SQLite keeps values of any type in any column."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Row, inspect, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import InstrumentedAttribute, Session

from backends.errors import CorruptFileError
from backends.fields import Fields
from backends.registry.schema import Base

_Entry = TypeVar("_Entry")
_NO_TEXT = "Could not decode to UTF-8"
"""SQLite's words for a text of other bytes."""


class ReadRows(NamedTuple, Generic[_Entry]):
    """What rows of a table say. `damaged`: what is wrong with those that cannot be read, by their names."""

    entries: Sequence[_Entry]
    damaged: Mapping[str, str]


def row_fields(row: Row[Any] | Base, what: str) -> Fields:
    """The columns of a row; errors say that they are the registry's, of `what`."""
    where = f"the registry's row of {what}"
    if isinstance(row, Base):
        return Fields({column.key: getattr(row, column.key) for column in inspect(type(row)).columns}, where)
    return Fields(row._mapping, where)


def read_json_column(text: Any) -> Any:
    """Read what a JSON column holds, for SQLAlchemy."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError("the registry is damaged: a column holds no JSON") from error


def read_rows(
    session: Session,
    name: InstrumentedAttribute[str],
    wanted: ColumnElement[bool],
    read: Callable[[ColumnElement[bool]], Sequence[_Entry]],
) -> ReadRows[_Entry]:
    """Read rows of a table, and where some are damaged all the others.

    Args:
        session: Reads the table.
        name: The column that names a row; the table counts its rows in `id`.
        wanted: Selects the rows.
        read: Reads those that a condition selects, and raises CorruptFileError where one is damaged.
    """
    number: InstrumentedAttribute[int] = name.class_.id
    damaged: dict[str, str] = {}

    def readable(numbers: Sequence[int]) -> Sequence[_Entry]:
        try:
            return read(wanted & number.between(numbers[0], numbers[-1]))
        except (CorruptFileError, OperationalError) as error:
            reason = _damage(error)
            if len(numbers) == 1:
                damaged[_shown_name(session, name, numbers[0])] = reason
                return []
        middle = len(numbers) // 2
        return [*readable(numbers[:middle]), *readable(numbers[middle:])]

    try:
        return ReadRows(read(wanted), damaged)
    except (CorruptFileError, OperationalError) as error:
        _damage(error)
    return ReadRows(readable(session.scalars(select(number).where(wanted).order_by(number)).all()), damaged)


def _damage(error: CorruptFileError | OperationalError) -> str:
    """Return what is wrong with a row; an error of the whole database is raised again."""
    if isinstance(error, CorruptFileError):
        return str(error)
    if _NO_TEXT not in str(error.orig):
        raise error
    return "the registry is damaged: a column holds what is no text"


def _shown_name(session: Session, name: InstrumentedAttribute[str], number: int) -> str:
    try:
        return str(session.scalar(select(name).where(name.class_.id == number)))
    except OperationalError:
        return f"of row {number}"
