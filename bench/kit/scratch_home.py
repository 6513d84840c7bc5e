"""A home that a benchmark may change: a copy of one that is given, or the tests' tiny one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE, Home
from bench.kit.synthetic_home import link_or_copy
from bench.kit.tiny_home import build_tiny_home

_REGISTRY = "registry.db"
_ROOMS = ("roots", "plots", "bank")
_OVERLAYS = shutil.ignore_patterns("*.overlay")


def add_home_option(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, help="a home to copy; by default a tiny one is built")


@contextmanager
def scratch_home(original: Path | None) -> Iterator[Home]:
    """Lives as long as the block; `original` is not touched."""
    if os.environ.get(REGISTRY_VARIABLE):
        raise InvalidArgumentError(f"unset {REGISTRY_VARIABLE}: this benchmark changes the registry of its home")
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        yield build_tiny_home(Path(folder)) if original is None else copied_home(original, Path(folder) / "home")


def copied_home(original: Path, target: Path) -> Home:
    """Published files never change, so links to them do where the disk allows it; what servers learned stays there."""
    target.mkdir(parents=True)
    for room in _ROOMS:
        if (original / room).is_dir():
            shutil.copytree(original / room, target / room, copy_function=link_or_copy, ignore=_OVERLAYS)
    copy_registry(original, target)
    return Home(target)


def copy_registry(original: Path, target: Path) -> None:
    """One moment of it, with what SQLite has written ahead, even while somebody writes."""
    source = f"file:{quote(str((original / _REGISTRY).absolute()))}?mode=ro"
    with closing(sqlite3.connect(source, uri=True)) as old, closing(sqlite3.connect(target / _REGISTRY)) as new:
        old.backup(new)
