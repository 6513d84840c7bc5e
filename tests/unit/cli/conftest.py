"""The command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cli


@pytest.fixture
def run_hplm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command and give back what it printed; what fails is the reason, as text."""

    def hplm(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *map(str, arguments)])
        failed = False
        try:
            cli.main()
        except SystemExit as stop:
            failed = bool(stop.code)
        printed = capsys.readouterr()
        return (printed.err or printed.out).strip() if failed else printed.out

    return hplm
