"""A paced server rejects requests for roots that it does not hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backends.engine.loop import ServeLoop
from backends.errors import UnavailableError
from backends.held_roots import ROOTS_VARIABLE
from backends.scheduling.cost_model import CostModel
from bench.kit.twins.paced import paced_loop

PACE = CostModel(20_000.0, 0.0, 0.0, 0.0, 0.0).to_json()


class Row:
    """What the loop looks at before it queues a row."""

    def __init__(self, root: str) -> None:
        self.stack = SimpleNamespace(root=root)
        self.fallback = None
        self.ends: list[Any] = []

    def end(self, outcome: Any) -> None:
        self.ends.append(outcome)


@pytest.mark.parametrize(
    ("roots", "queued"), [("base", ["base"]), ("base,large", ["base", "large"]), (None, ["base", "large", "tiny"])]
)
def test_rows_for_other_roots_are_rejected(
    roots: str | None, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if roots is None:
        monkeypatch.delenv(ROOTS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(ROOTS_VARIABLE, roots)
    taken: list[Any] = []
    monkeypatch.setattr(ServeLoop, "submit_together", lambda _, requests: taken.extend(requests))
    loop = object.__new__(paced_loop(PACE))
    rows = [Row(root) for root in ("base", "large", "tiny")]
    loop.submit_together([[row] for row in rows])  # type: ignore[list-item]
    assert [row.stack.root for request in taken for row in request] == queued
    for row in rows:
        rejected = [outcome for outcome in row.ends if isinstance(outcome, UnavailableError)]
        assert len(rejected) == (row.stack.root not in queued) and len(row.ends) == len(rejected)
