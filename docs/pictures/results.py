"""What the pictures read of the committed results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[1] / "results"


def is_measured(bench: str) -> bool:
    """Say whether there is a committed run."""
    return (_RESULTS / f"{bench}.json").exists()


def rows(bench: str) -> list[Mapping[str, Any]]:
    """Return the table of a committed run."""
    found: list[Mapping[str, Any]] = json.loads((_RESULTS / f"{bench}.json").read_text(encoding="utf-8"))["rows"]
    return found


def row(bench: str, **columns: Any) -> Mapping[str, Any]:
    """Return the one row that has these values."""
    (found,) = (row for row in rows(bench) if all(row[name] == value for name, value in columns.items()))
    return found
