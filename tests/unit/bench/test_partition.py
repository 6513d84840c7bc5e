"""`bench.partition`: its figures tell a registry that harms from one that does not, and its faults are faults."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.partition.registries import RESTORED, SqliteRegistry
from bench.kit.stock_client import Replies
from bench.partition import Fault, Turn, figures_of


def replies(took_ms: float, statuses: list[str], unanswered: int = 0) -> Replies:
    sent_s = np.arange(len(statuses), dtype=np.float64)
    return Replies(
        sent_s, sent_s + took_ms / 1e3, np.full(len(statuses), np.inf), np.array(statuses), 0.0, unanswered, {"why": 1}
    )


def turn(took_ms: float, statuses: list[str], unanswered: int = 0) -> Turn:
    return Turn(replies(2 * took_ms, statuses, unanswered), replies(took_ms, ["StatusCode.NOT_FOUND"] * 3))


def test_what_fails_in_any_turn_and_what_takes_longer_shows() -> None:
    faults = [
        Fault("sqlite", "away", turn(2.0, ["", ""]), turn(3.0, ["", "StatusCode.UNAVAILABLE"], unanswered=1), 0.4),
        Fault("sqlite", RESTORED, turn(2.0, ["", ""]), turn(3.0, ["", ""]), 1.5),
    ]
    assert figures_of(faults) == {
        "live_failed": 2,
        "partition_p99_ratio": pytest.approx(1.5),
        "answers_p99_ratio": pytest.approx(1.5),
        "fresh_s_max": 1.5,
    }


def test_an_absent_hplm_that_is_found_ends_the_bench() -> None:
    with pytest.raises(HplmError, match="why"):
        Turn(replies(1.0, [""]), replies(1.0, [""])).require_all_absent()


def test_a_file_goes_away_comes_back_and_is_restored(tmp_path: Path) -> None:
    home, failing = Home(tmp_path), SqliteRegistry()
    with closing(Registry.open(home, create=True)) as registry:
        registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    failing.save(home)
    with closing(Registry.open(home)) as registry:
        registry.publish_root("other", "f00e", "roots/other", "general", "plots/other/general@1", {})
    failing.begin("away", home)
    assert not (home.path / "registry.db").exists()
    failing.end(home)
    assert roots_of(home) == ["mini", "other"]
    failing.begin(RESTORED, home)
    assert roots_of(home) == ["mini"]


def roots_of(home: Home) -> list[str]:
    with closing(Registry.open(home)) as registry:
        return sorted({domain.root for domain in registry.domains()})
