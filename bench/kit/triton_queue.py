"""Triton's own means against overload, for comparison: priority levels and timeouts of its queue, and nothing of ours.

The shorter a text, the higher its priority; each request carries what is left of its deadline as Triton's timeout. No
model of ours is told a deadline, so nothing but Triton's queue rejects requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from builder.export.model_names import UPPER
from hplm_client import Request

_WORDS_OF_LEVELS = (8, 20)
_PATIENCE_S = 5.0


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


def queue_options(request: Request) -> dict[str, Any]:
    """Priority and timeouts; a request that Triton's queue has lost is given up."""
    left_ms = request.deadline_ms or 0
    return {
        "priority": _priority(request.text),
        "timeout": 1_000 * left_ms,
        "client_timeout": left_ms / 1e3 + _PATIENCE_S,
    }


def _priority(text: str) -> int:
    """1 is served first."""
    words = len(text.split())
    return 1 + sum(words > most for most in _WORDS_OF_LEVELS)
