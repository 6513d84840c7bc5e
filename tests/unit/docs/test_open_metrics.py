"""What an operator is told to type opens no metrics by the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[3]
SERVED = re.compile(r"(?<!fleet )\bserve\b.*--address\W+(?!127\.)")


def commands() -> Iterator[str]:
    pages = [path for folder in ("docs", "deploy") for path in (PROJECT / folder).rglob("*") if path.is_file()]
    for page in [PROJECT / "README.md", *pages]:
        yield from page.read_text(encoding="utf-8", errors="replace").splitlines()


def test_who_serves_beyond_this_machine_says_where_metrics_listen() -> None:
    found = [command for command in commands() if SERVED.search(command)]
    assert len(found) > 5
    assert [command for command in found if "--metrics-address" not in command] == []
