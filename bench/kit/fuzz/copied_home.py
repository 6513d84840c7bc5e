"""A copy of a home that a target may change: its files are links, its registry is its own."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from backends.home import Home
from bench.kit.synthetic_home import link_or_copy

_REGISTRY = "registry.db"


def copied_home(home: Home, scratch: Path) -> Home:
    copy = scratch / "home"
    registries = shutil.ignore_patterns(f"{_REGISTRY}*")
    shutil.copytree(home.path, copy, copy_function=link_or_copy, ignore=registries)
    with (
        closing(sqlite3.connect(home.path / _REGISTRY)) as source,
        closing(sqlite3.connect(copy / _REGISTRY)) as target,
    ):
        source.backup(target)
    return Home(copy)
