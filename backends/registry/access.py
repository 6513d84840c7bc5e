"""Checks of tokens, and what a server knows of tokens and quotas; the registry's snapshot keeps that up to date."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Iterable, Set
from typing import Any, TypeVar

from backends.errors import ForbiddenError, UnauthorisedError
from backends.registry.quotas import TenantQuota
from backends.registry.tokens import Role, TokenEntry, Validity, token_digest, token_id

_T = TypeVar("_T")
_NO_DIGEST = bytes(32)


class ForwardClock:
    """Seconds since the epoch, as many as the process has run for at least: a clock set back prolongs no token."""

    def __init__(self) -> None:
        self._started_at = time.time() - time.monotonic()

    def now(self) -> float:
        return max(time.time(), self._started_at + time.monotonic())


class TokenCheck:
    """Checks the tokens that callers show; it takes as long whether there is such a token or not.

    Args:
        find: Returns the token of an ID, if there is one.
        place: Where callers show their token, for messages.
    """

    def __init__(self, find: Callable[[str], TokenEntry | None], place: str) -> None:
        self._find = find
        self._place = place
        self._clock = ForwardClock()

    def require(self, text: object, *roles: Role) -> TokenEntry:
        """Return the token that a caller has shown, if it is valid now and has one of the roles.

        Raises:
            ForbiddenError: It is for something else.
            UnauthorisedError: There is none, or it is unknown or not valid now.
        """
        if text is None or text == "":
            raise UnauthorisedError(f"a token is needed: {self._place}")
        id = token_id(text) if isinstance(text, str) else None
        if not isinstance(text, str) or id is None:
            raise UnauthorisedError("the token has not the form of one, hplm_<id>_<secret>")
        entry = self._find(id)
        is_right = hmac.compare_digest(token_digest(text), entry.sha256 if entry else _NO_DIGEST)
        if entry is None or not is_right:
            raise UnauthorisedError("the token is not one of this server's")
        validity = entry.validity(self._clock.now())
        if validity is not Validity.VALID:
            raise UnauthorisedError(f"token {entry.id} is {validity}")
        if entry.role not in roles:
            raise ForbiddenError(f"token {entry.id} has the role {entry.role}, which may not do this")
        return entry


class AccessTokens:
    """The tokens of a registry by their IDs."""

    def __init__(self) -> None:
        self._by_id: dict[str, TokenEntry] = {}
        self.require = TokenCheck(self._by_id.get, "the request parameter tenant_token").require

    def apply(self, changed: Iterable[TokenEntry], is_whole: bool = False, damaged: Collection[str] = ()) -> None:
        """Take in tokens that were created, rotated or revoked, or all that there are.

        Those that stay are valid throughout; those that are damaged are not valid any more.
        """
        entries = {entry.id: entry for entry in changed}
        self._by_id.update(entries)
        if is_whole:
            _keep(self._by_id, entries.keys())
        for id in damaged:
            self._by_id.pop(id, None)


class AccessQuotas:
    """The quotas of a registry by tenant, each in a mapping of those tenants only that have it."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self.waiting_rows: dict[str, int] = {}
        self.rates: dict[str, TenantQuota] = {}
        """Of tenants that may send so many rows or bytes a second."""

    def apply(self, changed: Collection[TenantQuota], is_whole: bool = False, damaged: Collection[str] = ()) -> None:
        """Take in quotas that were set or removed, or all that there are; of `damaged` tenants they stay."""
        if is_whole:
            for values in (self.weights, self.waiting_rows, self.rates):
                _keep(values, {entry.tenant for entry in changed}.union(damaged))
        for entry in changed:
            _put(self.weights, entry.tenant, entry.quota.weight)
            _put(self.waiting_rows, entry.tenant, entry.quota.waiting_rows)
            _put(self.rates, entry.tenant, entry if entry.quota.has_rates else None)


def _keep(values: dict[str, Any], names: Set[str]) -> None:
    for name in values.keys() - names:
        del values[name]


def _put(values: dict[str, _T], tenant: str, value: _T | None) -> None:
    if value is None:
        values.pop(tenant, None)
    else:
        values[tenant] = value
