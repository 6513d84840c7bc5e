"""An open home: its folders and its registry, as every command needs them."""

from __future__ import annotations

from pathlib import Path

from backends.home import Home
from backends.registry.registry import Registry


def open_home(path: Path, create: bool = False) -> tuple[Home, Registry]:
    home = Home(path.absolute())
    return home, Registry.open(home, create=create)
