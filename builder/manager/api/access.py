"""Dependencies of every route: the manager, and a caller whose role may use the route."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from backends.registry.tokens import Role
from builder.manager.callers import Caller
from builder.manager.manager import Manager

_BEARER = HTTPBearer(auto_error=False, description="A token of hplm token, or that of --token-file; if any is needed.")


def _manager(request: Request) -> Manager:
    manager: Manager = request.app.state.manager
    return manager


ManagerOf = Annotated[Manager, Depends(_manager)]


class Allowed:
    """The dependency of a route: its caller, who has one of the roles."""

    def __init__(self, *roles: Role) -> None:
        self.roles = frozenset({*roles, Role.ADMIN})

    def __call__(
        self,
        request: Request,
        manager: ManagerOf,
        shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Caller:
        caller = manager.callers.require(shown.credentials if shown else "", self.roles)
        return replace(caller, address=request.client.host if request.client else None)


Reader = Annotated[Caller, Depends(Allowed(Role.VIEWER, Role.TENANT_ADMIN, Role.OPERATOR))]
Overseer = Annotated[Caller, Depends(Allowed(Role.VIEWER, Role.OPERATOR))]
"""Of what names all tenants."""
Builder = Annotated[Caller, Depends(Allowed(Role.TENANT_ADMIN, Role.OPERATOR))]
