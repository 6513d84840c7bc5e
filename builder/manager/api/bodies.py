"""The limit of a request's size: requests are read whole before their sender is known, but for uploads."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_REQUEST_BYTES = 1 << 20


class LimitedBodies:
    """Rejects longer bodies than that, announced or not; uploads are counted where they are written."""

    def __init__(self, app: ASGIApp, uploads_path: str) -> None:
        self._app = app
        self._uploads_path = uploads_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") == self._uploads_path:
            await self._app(scope, receive, send)
            return
        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > MAX_REQUEST_BYTES:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MAX_REQUEST_BYTES >> 20} MiB"
                )
            return message

        await self._app(scope, counted, send)
