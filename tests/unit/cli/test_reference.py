"""The generated reference is that of this code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from cli.app import app

PROJECT = Path(__file__).parents[3]
REFERENCE = PROJECT / "docs" / "reference"


def test_the_settings_name_every_option_of_export() -> None:
    command = typer.main.get_command(app).commands["export"]  # type: ignore[attr-defined]
    named = (REFERENCE / "settings.md").read_text()
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    assert len(options) > 30
    assert [option for option in options if f"`{option}`" not in named and option not in ("--home", "--help")] == []


def test_the_reference_is_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REFERENCE / "generate.py"), str(tmp_path)], check=True, cwd=PROJECT)
    for name in ("cli.md", "sdk.md", "settings.md"):
        assert (tmp_path / name).read_text() == (REFERENCE / name).read_text(), f"{name} is old; run: make reference"
