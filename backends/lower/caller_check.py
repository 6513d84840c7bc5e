"""Who may ask which hPLMs: the token of a request, checked before anything is looked up for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hmac import compare_digest
from typing import Any

from backends.errors import InvalidArgumentError, shown
from backends.model_settings import ModelSettings
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role
from backends.scheduling.tenants import tenant_of
from backends.seal import OWN_SEAL, Seal

AUTH_VARIABLE = "HPLM_AUTH"
"""Goes before what an export says, for one run of the server."""


class Auth(StrEnum):
    """Who may ask: everybody who reaches the port, or callers with a token."""

    OFF = "off"
    TOKENS = "tokens"

    @classmethod
    def from_model(cls, settings: ModelSettings) -> Auth:
        name = os.environ.get(AUTH_VARIABLE) or settings.text("auth", cls.OFF)
        if name not in list(cls):
            raise InvalidArgumentError(f"auth {shown(name)} is not one of {', '.join(cls)}")
        return cls(name)


class CallerCheck:
    """Finds the hPLMs that a request names, if its caller may ask them.

    With tokens, a caller learns nothing of hPLMs beyond its scope: it is told of one that exists what it is told of one
    that does not, after the same work. The canary of the server's own watchdog may ask all.
    """

    def __init__(self, snapshot: RegistrySnapshot, auth: Auth = Auth.OFF, seal: Seal = OWN_SEAL) -> None:
        self._snapshot = snapshot
        self._auth = auth
        self._canary_token = seal.canary_token.encode()

    def is_canary(self, parameters: Mapping[str, Any]) -> bool:
        """Whether the request is a canary of this server's watchdog."""
        token = parameters.get("tenant_token")
        return isinstance(token, str) and compare_digest(token.encode(errors="replace"), self._canary_token)

    def entries(self, hplms: Sequence[str], parameters: Mapping[str, Any]) -> list[HplmEntry]:
        """Return the live versions of the hPLMs that the rows of a request name.

        Raises:
            UnauthorisedError: There is no token where one is needed, or it is no good.
            InvalidArgumentError: The rows are of several tenants.
            NotFoundError: An hPLM does not exist, or is not within the token's scope.
        """
        if self._auth is Auth.OFF or self.is_canary(parameters):
            return [self._snapshot.find(hplm) for hplm in hplms]
        token = self._snapshot.tokens.require(parameters.get("tenant_token"), Role.CALLER)
        if len(set(map(tenant_of, hplms))) > 1:
            raise InvalidArgumentError("where tokens are needed, all rows of a request are of one tenant")
        return [self._snapshot.find(hplm, token.allows(hplm)) for hplm in hplms]
