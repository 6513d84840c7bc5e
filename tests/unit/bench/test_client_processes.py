"""Loads that several processes play side by side, as one."""

from __future__ import annotations

import pytest
from played import Ended, played

from bench.kit.client_processes import together
from hplm_client import UnavailableError
from loadtest.errors import RunError


def test_loads_side_by_side_are_one_load() -> None:
    parts = [played([Ended(0.01), Ended(0.03)]), played([Ended(0.02), Ended(0.04), Ended(0.05)])]
    whole = together(parts)
    assert sorted(whole.requests.done_s.tolist()) == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert whole.rows_per_s(edge_rows=1) == pytest.approx(3 / 0.03)
    assert whole.client_cores == pytest.approx(0.2), "of both processes, in the time of the longest"
    whole.require_all_answered()


def test_a_row_without_an_answer_in_any_part_is_an_error() -> None:
    whole = together([played([Ended(0.01)]), played([Ended(0.02, UnavailableError("the queue holds 17 rows"))])])
    with pytest.raises(RunError, match="1 of 2 requests"):
        whole.require_all_answered()
