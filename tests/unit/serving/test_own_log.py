"""Servers of one home write logs of their own."""

from __future__ import annotations

from pathlib import Path

from builder.serving.own_log import own_log


def test_each_server_has_a_log_of_its_own_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with own_log(folder) as first:
        with own_log(folder) as second, own_log(folder) as third:
            assert [path.name for path in (first, second, third)] == ["server.log", "server-2.log", "server-3.log"]
        with own_log(folder) as again:
            assert again == second
    with own_log(folder) as alone:
        assert alone == first
    assert list(folder.iterdir()) == []
