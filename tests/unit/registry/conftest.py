"""Registries of every kind that there is a database for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """A home without a registry."""
    if request.param == "postgresql":
        request.getfixturevalue("registry_in_postgres")
    return Home(tmp_path / "home")


@pytest.fixture
def open_registry(home: Home) -> Iterator[Callable[[], Registry]]:
    """Opens the home's registry as one more process would."""
    opened: list[Registry] = []

    def open_it() -> Registry:
        opened.append(Registry.open(home, create=True))
        return opened[-1]

    yield open_it
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(open_registry: Callable[[], Registry]) -> Registry:
    """One root with its own first domain."""
    registry = open_registry()
    registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    return registry
