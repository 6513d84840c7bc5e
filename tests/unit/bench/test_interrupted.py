from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from backends.home import Home
from bench import interrupted
from bench.interrupted import Killer


@dataclass
class Builds:
    """Builds that are published at their first kill, or at their second."""

    published_at: int
    kind: str = "made up"
    asked: int = 0

    def command(self, number: int) -> Sequence[str]:
        return ()

    def prepare(self) -> None:
        self.asked = 0

    def is_published(self, number: int) -> bool:
        self.asked += 1
        return self.asked >= self.published_at

    def difference(self, number: int) -> float:
        return 0.0


class Endless:
    """A command that ends only when killed."""

    last_line = "build: at work"

    def __init__(self, home: Home, arguments: Sequence[str]) -> None:
        pass

    def ends_within(self, seconds: float | None) -> bool:
        return seconds is None

    def kill(self) -> None:
        pass


@pytest.mark.parametrize(("published_at", "counted"), [(1, 0), (2, 1), (3, 2)])
def test_a_kill_after_publication_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, published_at: int, counted: int
) -> None:
    monkeypatch.setattr(interrupted, "Command", Endless)
    row = Killer(Home(tmp_path), Builds(published_at), random.Random(1))._killed(1, most_kills=9)
    assert row["kills"] == counted
