from __future__ import annotations

import pytest

from backends.errors import InvalidArgumentError
from backends.names import check_hplm_id, check_name, names_version, split_domain


def test_names_that_are_fine() -> None:
    assert check_name("mini-3.of_6", "root") == "mini-3.of_6"
    assert check_hplm_id("acme/returns-eu") == "acme/returns-eu"


@pytest.mark.parametrize("name", ["", "x\n", "a b", "../x", ".x", "a--b", "a/b", "x" * 101])
def test_names_that_are_no_file_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not allowed"):
        check_name(name, "root")


@pytest.mark.parametrize("hplm", ["acme/x\n", "acme\n/x", "acme", "a/b/c"])
def test_ids_that_are_not_tenant_and_name(hplm: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tenant/name"):
        check_hplm_id(hplm)


def test_a_domain_may_be_named_with_its_version() -> None:
    assert split_domain("shop") == ("shop", None)
    assert split_domain("shop@12") == ("shop", 12)
    assert (names_version("shop"), names_version("shop@2")) == (False, True)


@pytest.mark.parametrize(
    "reference", ["shop@", "shop@0", "shop@-1", "shop@two", "shop@2@3", "shop@²", f"shop@{'1' * 5_000}"]
)
def test_domain_versions_that_are_no_numbers(reference: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name@version"):
        split_domain(reference)
