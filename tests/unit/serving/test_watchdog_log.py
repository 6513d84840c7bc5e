"""Lines of the watchdog in the log of its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.serving.watchdog_log import is_of_watchdog, note


@pytest.mark.parametrize(
    ("before", "lines"),
    [(None, []), ("", []), ("whole\n", ["whole"]), ("whole\ncut by a full di", ["whole", "cut by a full di"])],
)
def test_each_line_is_one_of_its_own(tmp_path: Path, before: str | None, lines: list[str]) -> None:
    log = tmp_path / "server.log"
    if before is not None:
        log.write_text(before)
    note(log, "ready again, über")
    note(log, "stopped")
    *found, first, last = log.read_text(encoding="utf-8").splitlines()
    assert found == lines
    assert is_of_watchdog(first) and first.endswith(" watchdog: ready again, über")
    assert last.endswith(" watchdog: stopped")


def test_a_log_that_cannot_be_written_is_left_out() -> None:
    note(Path("/dev/full"), "stopped")
    note(Path("/no/such/folder/server.log"), "stopped")
    note(None, "stopped")
