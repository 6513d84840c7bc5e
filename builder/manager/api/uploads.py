"""Routes of uploads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from backends.errors import InvalidArgumentError, UnavailableError
from builder.manager.api.access import Builder, ManagerOf, Reader
from builder.manager.api.errors import answers
from builder.manager.api.views import UploadList, UploadView
from builder.manager.quotas import QuotaError
from builder.manager.upload_checks import CHECKS
from builder.manager.uploads import UploadTooLargeError
from builder.requests.base import UploadKind

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
_DISCARDED_BYTES = 64 << 20
_DISCARD_S = 2.0
_IDLE_S = 60.0
_BINARY_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file itself, not a form: curl -T FILE.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
NameParameter = Annotated[
    str, Query(min_length=1, max_length=200, description="What to call the file in lists and messages.")
]
KindParameter = Annotated[
    UploadKind,
    Query(description="corpus: one text per line; task: labelled texts (JSONL or CoNLL); adapter: a zipped folder."),
]


@router.put(
    "",
    status_code=HTTPStatus.CREATED,
    openapi_extra=_BINARY_BODY,
    responses=answers(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INSUFFICIENT_STORAGE,
    ),
)
async def upload(
    request: Request, manager: ManagerOf, caller: Builder, kind: KindParameter, name: NameParameter
) -> UploadView:
    """Send a corpus, a task file or a zipped adapter folder as the request's body.

    The file is checked at once: text that is not UTF-8, a wrong format or a broken archive is rejected with the line.
    """
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise InvalidArgumentError("send the file itself as the body (curl -T FILE), not a form")
    chunks, receiving = request.stream(), manager.uploads.receiving(kind, name, caller.tenant)
    with contextlib.ExitStack() as open_upload:
        try:
            incoming = await run_in_threadpool(open_upload.enter_context, receiving)  # it may read many files
            incoming.expect(_announced_bytes(request))
            async for chunk in _flowing(chunks, name):
                await run_in_threadpool(incoming.write, chunk)
        except (UploadTooLargeError, QuotaError, UnavailableError):
            if request.headers.get("expect", "").lower() != "100-continue":  # such a client has sent nothing yet
                await _discard(chunks)
            raise
        return UploadView.model_validate(await run_in_threadpool(incoming.keep, CHECKS[kind]))


def _announced_bytes(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else 0


async def _flowing(chunks: AsyncIterator[bytes], name: str) -> AsyncIterator[bytes]:
    """Yield what comes; a sender that has vanished must not take the place of an upload for ever.

    Raises:
        InvalidArgumentError: Nothing has come for a minute.
    """
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise InvalidArgumentError(f"nothing of {name} has come for {_IDLE_S:g} s; send it again") from error
        yield chunk


async def _discard(chunks: AsyncIterator[bytes]) -> None:
    """Read on for a while, or the sender would see a broken connection instead of the answer."""
    discarded_bytes = 0
    with contextlib.suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            async for chunk in chunks:
                discarded_bytes += len(chunk)
                if discarded_bytes > _DISCARDED_BYTES:
                    return


@router.get("", responses=answers())
def list_uploads(manager: ManagerOf, caller: Reader) -> UploadList:
    """All uploads, the newest first; for a tenant-admin, its tenant's."""
    seen = [one for one in manager.uploads.all() if caller.tenant in (None, one.tenant)]
    return UploadList.model_validate({"uploads": seen})


@router.get("/{upload_id}", responses=answers(HTTPStatus.NOT_FOUND))
def show_upload(manager: ManagerOf, caller: Reader, upload_id: str) -> UploadView:
    return UploadView.model_validate(caller.require_upload(manager.uploads.get(upload_id)))


@router.delete(
    "/{upload_id}", status_code=HTTPStatus.NO_CONTENT, responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
)
def delete_upload(manager: ManagerOf, caller: Builder, upload_id: str) -> Response:
    """Remove an upload that no unfinished job reads; what was built from it stays."""
    caller.require_upload(manager.uploads.get(upload_id))
    manager.admission.delete_upload(upload_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)
