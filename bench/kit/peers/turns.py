"""Measured turns, kept in a file as they end, so that a long run can be measured in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.errors import InvalidArgumentError
from bench.kit.progress import one_by_one

Cell = tuple[str, str, int]
"""A way to serve, the name of the rows' lengths, the number of tenants."""
Turn = dict[Cell, float]
"""Rows a second."""


@dataclass(frozen=True)
class Turns:
    """Turns of the same settings.

    Args:
        settings: What all turns must have in common.
        path: Where they are kept, one JSON object a line; None keeps none.
    """

    settings: Mapping[str, Any]
    path: Path | None
    taken: list[Turn] = field(default_factory=list)

    @classmethod
    def opened(cls, settings: Mapping[str, Any], path: Path | None) -> Turns:
        """Raises InvalidArgumentError if the file has turns of other settings."""
        turns = cls(json.loads(json.dumps(settings)), path)
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for line in lines:
            content = json.loads(line)
            if content["settings"] != turns.settings:
                raise InvalidArgumentError(
                    f"{path} holds turns of other settings or of another machine; name another file"
                )
            turns.taken.append({(way, lengths, tenants): rate for way, lengths, tenants, rate in content["cells"]})
        return turns

    def measure(self, turn: Callable[[], Turn], count: int) -> None:
        for _ in one_by_one(range(count), "peers", "turns"):
            measured = turn()
            self.taken.append(measured)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                cells = [[*cell, rate] for cell, rate in measured.items()]
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"settings": self.settings, "cells": cells}) + "\n")

    def rates(self) -> dict[Cell, list[float]]:
        """Those of the cells that every turn has."""
        common = [cell for cell in self.taken[0] if all(cell in turn for turn in self.taken)]
        return {cell: [turn[cell] for turn in self.taken] for cell in common}
