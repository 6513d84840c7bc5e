"""A home of small real folders for tests of its collection; other tests have homes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_home import add_root

from backends.home import Home
from backends.registry.registry import Registry


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def registry(home: Home) -> Registry:
    registry = Registry.open(home, create=True)
    add_root(home, registry, "mini")
    return registry
