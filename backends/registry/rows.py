"""Rows as a damaged database file may have them: SQLite keeps values of any type in any column."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row, inspect

from backends.errors import CorruptFileError
from backends.fields import Fields
from backends.registry.schema import Base


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
