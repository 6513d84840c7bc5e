"""Triton's own means against overload, for comparison: priority levels and timeouts of its queue, and nothing of ours.

The shorter a text, the higher its priority; each request carries what is left of its deadline as Triton's timeout. No
model of ours is told a deadline, so nothing but Triton's queue rejects requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tritonclient.grpc.aio as triton
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema
from tritonclient.utils import InferenceServerException

from bench.kit.open_loop import Ask, Planned
from builder.export.models import ENSEMBLE, UPPER
from hplm_client import RequestTimeoutError, UnavailableError
from hplm_client.codec import Call, inputs_of

_WORDS_OF_LEVELS = (8, 20)
_PATIENCE_S = 5.0
"""Beyond its deadline: a request that Triton's queue has lost is given up."""


def use_queue_policy(repository: Path) -> None:
    """Let the upper half of a repository in mode `triton` queue by priorities, and drop requests that wait too long."""
    path = repository / UPPER / "config.pbtxt"
    message = text_format.Parse(path.read_text(encoding="utf-8"), schema.ModelConfig())
    batching = message.dynamic_batching
    batching.priority_levels = len(_WORDS_OF_LEVELS) + 1
    batching.default_priority_level = batching.priority_levels
    batching.default_queue_policy.timeout_action = schema.ModelQueuePolicy.TimeoutAction.Value("REJECT")
    batching.default_queue_policy.allow_timeout_override = True
    path.write_text(text_format.MessageToString(message), encoding="utf-8")


def _priority(text: str) -> int:
    """1 is served first."""
    words = len(text.split())
    return 1 + sum(words > most for most in _WORDS_OF_LEVELS)


@asynccontextmanager
async def asking_triton(url: str) -> AsyncIterator[Ask]:
    client = triton.InferenceServerClient(url)

    async def ask(planned: Planned, left_ms: int) -> None:
        try:
            await client.infer(
                ENSEMBLE,
                inputs_of(Call(planned.hplm, (planned.text.encode(),), {}), triton.InferInput),
                priority=_priority(planned.text),
                timeout=1_000 * left_ms,
                client_timeout=left_ms / 1e3 + _PATIENCE_S,
            )
        except InferenceServerException as error:
            was_rejected = error.status() == "StatusCode.UNAVAILABLE"
            raise (UnavailableError if was_rejected else RequestTimeoutError)(str(error)) from error

    try:
        yield ask
    finally:
        await client.close()
