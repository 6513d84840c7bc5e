"""Files that the pages about the code name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PAGES = [PROJECT / "docs" / "structures.md", *(PROJECT / "docs" / "explanation").glob("*.md")]
ROOMS = ("backends", "bench", "builder", "cli", "clients", "demo", "docs", "loadtest", "tests", "workload")
FILES = sorted(path.relative_to(PROJECT) for room in ROOMS for path in (PROJECT / room).rglob("*"))
MOST_LINES = 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_exist(page: Path) -> None:
    """A path begins at the project's folder or is the end of one; `NAME` stands for any."""
    named = re.findall(r"`([\w/.-]+\.(?:py|h|toml|md))`", page.read_text(encoding="utf-8"))
    ends = ["/pyproject.toml", *(f"/{file}" for file in FILES)]
    missing = [name for name in named if "NAME" not in name and not any(end.endswith(f"/{name}") for end in ends)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_folders_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(ROOMS)})/(?:[\w]+/)*)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (PROJECT / name).is_dir()] == []


def test_the_structure_fits_on_two_screens() -> None:
    assert len((PROJECT / "docs" / "structures.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
