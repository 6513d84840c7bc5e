"""What an operator or a disk has damaged is said, and exported over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cli
from backends.errors import CorruptFileError
from backends.home import Home
from builder.export.in_force import settings_of
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.listening import auth_of_run


def export(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hplm", "export", "--home", str(home.path), "--no-plugin"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def edited(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (as_folder, "config.pbtxt cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"\xff"), "config.pbtxt"),
        (edited('"129"', '"many"'), "config.pbtxt has 'many' slots"),
    ],
    ids=["a folder", "no text", "no number"],
)
def test_a_damaged_repository_is_replaced(
    tiny_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    said: str,
) -> None:
    export(tiny_home, monkeypatch)
    wanted = settings_of(tiny_home.repository)
    damage(tiny_home.repository / "hplm_upper" / "config.pbtxt")
    export(tiny_home, monkeypatch)
    told = capsys.readouterr().err
    assert "replacing a damaged repository: " in told and said in told
    assert settings_of(tiny_home.repository) == wanted


def test_an_auth_that_there_is_not_is_an_error(tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings(takes_plugin=False, lower_parameters={"auth": "maybe"}))
    with pytest.raises(CorruptFileError, match="has auth 'maybe'; run `hplm export` again"):
        auth_of_run(tiny_home.repository, None)
