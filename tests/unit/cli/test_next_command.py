"""Commands that the output names go on with the home that they were printed about."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.home import HOME_VARIABLE, Home
from cli.next_command import command_on


def test_only_another_home_than_the_shell_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    usual, other = Home(tmp_path / "hplm_home"), Home(tmp_path / "an other")
    assert command_on(usual, "hplm gc") == "hplm gc"
    assert command_on(other, "hplm gc") == f"hplm gc --home '{other.path}'"
    monkeypatch.setenv(HOME_VARIABLE, "an other")
    assert command_on(other, "hplm gc") == "hplm gc"
    assert command_on(usual, "hplm gc") == f"hplm gc --home {usual.path}"
