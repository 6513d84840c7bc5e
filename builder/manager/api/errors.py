"""Every error in one shape: `{"error": {"code": …, "message": …}}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from backends.errors import HplmError, presentable
from builder.manager.failures import failure_of, status_of
from builder.manager.jobs import Failure
from builder.manager.quotas import QuotaError

_SHOWN_PROBLEMS = 5
_CODES = {HTTPStatus.NOT_FOUND: "NOT_FOUND", HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "TOO_LARGE"}


class ErrorAnswer(BaseModel):
    error: Failure


def answers(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for its description."""
    wanted = (HTTPStatus.UNAUTHORIZED, *statuses, HTTPStatus.SERVICE_UNAVAILABLE)
    return {status.value: {"model": ErrorAnswer, "description": status.phrase} for status in wanted}


def install(app: FastAPI) -> None:
    app.add_exception_handler(HplmError, handle_hplm_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(ClientDisconnect, handle_disconnect)
    app.add_exception_handler(Exception, handle_hplm_error)


def handle_hplm_error(request: Request, error: Exception) -> JSONResponse:
    failure = failure_of(error, {f"{request.app.state.manager.home.path}/": ""})
    wait_ms = error.retry_after_ms if isinstance(error, QuotaError) else None
    headers = None if wait_ms is None else {"Retry-After": str(-(-wait_ms // 1000))}
    return error_answer(status_of(presentable(error)), failure.code, failure.message, headers)


def handle_validation_error(_: Request, error: Exception) -> JSONResponse:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    problems_shown = [f"{_field(problem['loc'])}: {problem['msg']}" for problem in problems[:_SHOWN_PROBLEMS]]
    return error_answer(HTTPStatus.BAD_REQUEST, "INVALID_ARG", "; ".join(problems_shown))


def handle_http_exception(_: Request, error: Exception) -> JSONResponse:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else 500)
    message = str(error.detail) if isinstance(error, HTTPException) else status.phrase
    headers = error.headers if isinstance(error, HTTPException) else None
    return error_answer(status, _CODES.get(status, "INVALID_ARG"), message, headers)


def handle_disconnect(_: Request, error: Exception) -> JSONResponse:
    return error_answer(HTTPStatus.BAD_REQUEST, "INVALID_ARG", "the connection ended before the request did")


def error_answer(status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    if status is HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    content = {"error": {"code": code, "message": message.encode(errors="replace").decode()}}
    return JSONResponse(content, status.value, headers)


def _field(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)
