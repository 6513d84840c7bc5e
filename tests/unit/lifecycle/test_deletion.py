"""What a build reads cannot be deleted under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from builder.lifecycle.deletion import delete_domain, delete_root
from builder.locks import exclusive


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a root and a domain that nothing depends on."""
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    general = registry.publish_root("mini", "f" * 32, "roots/mini", "general", "plots/mini/general@1", {})
    registry.publish_domain("mini", "shop", "plots/mini/shop@1", general, {}, version=1)
    registry.publish_root("other", "e" * 32, "roots/other", "general", "plots/other/general@1", {})
    return home


def test_a_domain_stays_while_a_build_reads_it(home: Home) -> None:
    registry = Registry.open(home)
    with exclusive(home, home.path / "bank" / "acme--new", "hPLM 'acme/new'") as hold:
        hold.will_read(registry.domain("mini", "shop").folders)
        with pytest.raises(ConflictError, match="domain 'shop' stays: a build reads it"):
            delete_domain(home, registry, "mini", "shop")
    assert delete_domain(home, registry, "mini", "shop").name == "shop"


def test_a_root_stays_while_a_build_reads_it(home: Home) -> None:
    registry = Registry.open(home)
    with exclusive(home, home.path / "bank" / "acme--new", "hPLM 'acme/new'") as hold:
        hold.will_read(registry.domain("other", "general").folders)
        with pytest.raises(ConflictError, match="root 'other' stays: a build reads it"):
            delete_root(home, registry, "other")
    delete_root(home, registry, "other")
    with pytest.raises(NotFoundError):
        registry.root("other")


@pytest.mark.parametrize(
    "delete",
    [
        lambda home, registry: delete_domain(home, registry, "mini", "shop"),
        lambda home, registry: delete_root(home, registry, "other"),
    ],
)
def test_nothing_goes_while_a_build_has_not_said_what_it_reads(
    home: Home, delete: Callable[[Home, Registry], object]
) -> None:
    registry = Registry.open(home)
    target = home.path / "bank" / "acme--new"
    with exclusive(home, target, "hPLM 'acme/new'"), pytest.raises(ConflictError, match="a build has just begun"):
        delete(home, registry)
    delete(home, registry)


def test_a_build_of_something_else_is_no_obstacle(home: Home) -> None:
    registry = Registry.open(home)
    with exclusive(home, home.path / "bank" / "acme--new", "hPLM 'acme/new'") as hold:
        hold.will_read(registry.domain("mini", "general").folders)
        delete_domain(home, registry, "mini", "shop")
        delete_root(home, registry, "other")
