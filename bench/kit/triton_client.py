"""Triton's own client as a way to ask: no SDK, any model that speaks the ensemble's wire contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from builder.export.model_names import ENSEMBLE
from hplm_client import Request, RequestTimeoutError, UnavailableError
from hplm_client.codec import Call, inputs_of
from loadtest.sender import Ask, Target

Options = Callable[[Request], dict[str, Any]]
"""What Triton is told with a request."""


@asynccontextmanager
async def open_triton(target: Target, model: str = ENSEMBLE, options: Options = lambda _: {}) -> AsyncIterator[Ask]:
    client = triton.InferenceServerClient(target.url)

    async def ask(request: Request) -> None:
        inputs = inputs_of(Call(request.hplm, (request.wire_text,), {}), triton.InferInput)
        try:
            await client.infer(model, inputs, **{"client_timeout": target.timeout_s, **options(request)})
        except InferenceServerException as error:
            was_rejected = error.status() == "StatusCode.UNAVAILABLE"
            raise (UnavailableError if was_rejected else RequestTimeoutError)(str(error)) from error

    try:
        yield ask
    finally:
        await client.close()
