"""From the upper layers' states to answers: pooling and the per-hPLM heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backends.adapters.bottleneck import Head
from backends.engine.job import Answer
from backends.errors import HplmError
from backends.registry.entries import HplmEntry


def pool_cls(states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0].float()


def pool_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.float()
    summed = torch.einsum("blh,bl->bh", states.float(), weights)
    return summed / weights.sum(dim=1, keepdim=True)


POOL_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cls": pool_cls, "mean": pool_mean}
"""Padded states `[B, L, H]` and mask `[B, L]` → `[B, H]`, in fp32."""


def logits(states: Tensor, head: Head, pooling: str) -> Tensor:
    """One row's states `[L, H]` → `[C]`, in fp32."""
    pooled = states[0].float() if pooling == "cls" else states.float().mean(dim=0)
    return torch.addmv(head.bias, head.weight, pooled)


def classification_answer(entry: HplmEntry, row_logits: Tensor, truncated: bool) -> Answer:
    """The `RESULT` of a classification row, as the wire contract has it."""
    if not bool(torch.isfinite(row_logits).all()):
        raise HplmError(f"hPLM {entry.id!r} gave a result that is not a number")
    scores = [float(f"{score:.7g}") for score in row_logits.softmax(dim=-1).tolist()]  # as precise as fp32, no longer
    best = max(range(len(scores)), key=scores.__getitem__)
    answer: Answer = {
        "hplm": entry.id,
        "version": entry.version,
        "task": entry.task,
        "label": entry.labels[best],
        "score": scores[best],
        "scores": dict(zip(entry.labels, scores, strict=True)),
    }
    if truncated:
        answer["truncated"] = True
    return answer
