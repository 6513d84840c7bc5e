"""Dependencies of every route: the manager, and a caller who may use it."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from builder.manager.failures import UnauthenticatedError
from builder.manager.manager import Manager

_BEARER = HTTPBearer(auto_error=False, description="The token of --token-file, if there is one.")


def _manager(request: Request) -> Manager:
    manager: Manager = request.app.state.manager
    return manager


ManagerOf = Annotated[Manager, Depends(_manager)]


def require_token(manager: ManagerOf, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
    """Reject callers without the token, if there is one; the comparison takes as long for any wrong one."""
    if manager.token is None:
        return
    token = shown.credentials if shown else ""
    if not secrets.compare_digest(token.encode(), manager.token.encode()):
        raise UnauthenticatedError("this manager needs its token: Authorization: Bearer …")
