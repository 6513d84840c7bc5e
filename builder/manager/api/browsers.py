"""Pages of other sites that make a browser on this machine send requests; without a token nothing else stops them."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from builder.manager.api.errors import error_answer

LOOPBACK_ADDRESSES = ("127.0.0.1", "localhost", "::1")
LOOPBACK_HOSTS = (*LOOPBACK_ADDRESSES, "[::1]")
"""Names of this machine as requests spell them."""


class SameOrigin:
    """Reject requests of other origins' pages. Browsers name the origin; programs name none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None or urlsplit(origin).netloc == headers.get("host"):
            await self._app(scope, receive, send)
            return
        answer = error_answer(HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", "pages of other origins are rejected")
        await answer(scope, receive, send)
