"""The generated reference is that of this code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[3]
REFERENCE = PROJECT / "docs" / "reference"


def test_the_reference_is_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REFERENCE / "generate.py"), str(tmp_path)], check=True, cwd=PROJECT)
    for name in ("cli.md", "sdk.md", "settings.md"):
        assert (tmp_path / name).read_text() == (REFERENCE / name).read_text(), f"{name} is old; run: make reference"
