"""An open home: its folders and its registry, as every command needs them."""

from __future__ import annotations

from pathlib import Path

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry


def open_home(path: Path, create: bool = False) -> tuple[Home, Registry]:
    home = Home(path.absolute())
    return home, Registry.open(home, create=create)


def chosen_root(registry: Registry, name: str | None) -> str:
    """The root that was named, or the only one there is."""
    if name is not None:
        return registry.root(name).name
    roots = registry.roots()
    if not roots:
        raise NotFoundError("this home has no root yet; 'hplm root add' makes one")
    if len(roots) > 1:
        raise InvalidArgumentError(f"this home has {len(roots)} roots; name one with --root")
    return roots[0].name
