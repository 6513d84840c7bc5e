"""`hplm audit`, on a copy of the tiny home."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable

import pytest

import cli
from backends.home import Home


def test_what_was_changed_is_shown(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    def hplm(*arguments: str) -> str:
        return run_hplm(*arguments, "--home", tiny_home.path)

    hplm("quota", "set", "acme", "--weight", "3")
    hplm("quota", "set", "globex", "--weight", "2")
    last = json.loads(hplm("audit", "--json"))[-2]
    assert (last["action"], last["target"], last["after"]) == ("quota.set", "acme", "weight 3")
    assert "quota.set\tacme" in hplm("audit", "--since", "1h")
    of_globex = json.loads(hplm("audit", "--tenant", "globex", "--json"))
    assert of_globex and all("globex" in entry["target"] for entry in of_globex)
    assert json.loads(hplm("audit", "--since", "2999-01-01", "--json")) == []
    assert hplm("audit", "--since", "monday").startswith("hplm: --since: 'monday' is neither a date such as")


def test_a_log_that_was_changed_by_hand_is_printed_with_its_marks(
    run_hplm: Callable[..., str], tiny_home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def audit(*options: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["hplm", "audit", *options, "--home", str(tiny_home.path)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert stopped.value.code == 6
        return printed.out, printed.err

    for weight in range(1, 7):
        run_hplm("quota", "set", "acme", "--weight", str(weight), "--home", tiny_home.path)
    last = json.loads(run_hplm("audit", "--json", "--home", tiny_home.path))[-1]["number"]
    damage = (
        f"UPDATE audit SET at = 1e17 WHERE number = {last - 4}; DELETE FROM audit WHERE number IN ({last - 2}, {last})"
    )
    with sqlite3.connect(tiny_home.path / "registry.db") as connection:
        connection.executescript(damage)
    wrong, behind = "not as it was written", f"before it, entry {last - 2} is missing"
    for options in ((), ("--since", "1h"), ("--tenant", "acme")):
        out, err = audit(*options)
        head, *lines = (line.split("\t") for line in out.splitlines())
        assert (head[0], head[-1]) == ("number", "mark")
        assert [line[-1] for line in lines][-4:] == ["", wrong, "", behind][-len(lines) :]
        assert (
            f"changed by hand: entry {last - 4} is {wrong}, entry {last - 2} is missing, at its end, "
            f"entry {last} is missing" in err
        )
    out, err = audit("--json", "--since", "1h")
    assert [entry["mark"] for entry in json.loads(out)][-4:] == [None, wrong, None, behind]
    assert json.loads(err)["error"]["exit_code"] == 6
