"""The names that users give: checked once, so that they are safe as file names and in messages."""

from __future__ import annotations

import re

from backends.errors import InvalidArgumentError, shown

_PART = r"[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)*"
_NAME = re.compile(_PART)
_HPLM = re.compile(rf"{_PART}/{_PART}")
_MAX_CHARACTERS = 100
_VERSION = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


def check_name(name: str, what: str) -> str:
    """A root's or a domain's name."""
    if len(name) > _MAX_CHARACTERS or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{what} name {shown(name)} is not allowed: letters, digits, '.', '_' and single '-', "
            f"at most {_MAX_CHARACTERS} characters"
        )
    return name


def check_hplm_id(hplm: str) -> str:
    """An hPLM's ID, `tenant/name`."""
    if len(hplm) > 2 * _MAX_CHARACTERS or not _HPLM.fullmatch(hplm):
        raise InvalidArgumentError(
            f"hPLM ID {shown(hplm)} is not of the form tenant/name (letters, digits, '.', '_' and single '-')"
        )
    return hplm


def split_domain(reference: str) -> tuple[str, int | None]:
    """A domain as users name it: `shop` is the live version, `shop@2` that one."""
    name, at, version = reference.partition("@")
    if at and not _VERSION.fullmatch(version):
        raise InvalidArgumentError(f"domain {shown(reference)} is not of the form name or name@version")
    return name, int(version) if at else None


def names_version(reference: str) -> bool:
    """Whether a domain is named as one version of it."""
    return split_domain(reference)[1] is not None
