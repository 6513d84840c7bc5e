"""Exits: where a row may leave the layers of its stack, and what is known of it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.adapters.head import Head

NEVER = 2.0
"""A threshold that no confidence reaches."""


@dataclass(frozen=True)
class Exit:
    """The place where one row may leave the layers.

    Attributes:
        after: Number of layers that the row has passed by then.
        head: Answers from their states; pooled as the hPLM's own head is.
        temperature: Makes the answer's confidence true.
        threshold: Least confidence of a row that leaves here; None if it leaves whatever it is.
        answers: The tokens whose answers count, as those of words; None for the row's one answer.
    """

    after: int
    head: Head
    temperature: float
    threshold: float | None
    answers: Sequence[int] | None = None

    def lets_go(self, confidence: float) -> bool:
        return self.threshold is None or confidence >= self.threshold


class Early(NamedTuple):
    """A row's answer at its exit.

    Attributes:
        logits: In fp32 on the CPU, `[C]`, or `[L, C]` without pooling.
        confidence: Of the answer, or of the least sure word; 1 where there is no word, and 0 where it is no number.
        leaves: Whether the row passes no more layers.
    """

    logits: Tensor
    confidence: float
    leaves: bool


def cuts_of(exits: Iterable[Exit | None], num_layers: int) -> list[int]:
    """Return the numbers of layers after which rows may leave, in order."""
    return sorted({each.after for each in exits if each is not None and 0 < each.after < num_layers})


def confidences(logits: Sequence[Tensor], exits: Sequence[Exit]) -> list[float]:
    """Return how sure the answers of rows are, in few array operations for all."""
    counted = [_counted(each, one) for each, one in zip(logits, exits, strict=True)]
    measured = [1.0] * len(counted)  # where no answer counts, none is doubtful
    for width in {each.shape[1] for each in counted}:
        members = [index for index, each in enumerate(counted) if len(each) and each.shape[1] == width]
        if not members:
            continue
        temperatures = np.repeat([exits[index].temperature for index in members], [len(counted[i]) for i in members])
        numbers = torch.cat([counted[index] for index in members]).numpy().astype(np.float64) / temperatures[:, None]
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(numbers - numbers.max(axis=1, keepdims=True))
            best = exponentials.max(axis=1) / exponentials.sum(axis=1)
        starts = np.cumsum([0, *(len(counted[index]) for index in members[:-1])])
        least = np.nan_to_num(np.minimum.reduceat(best, starts), nan=0.0)
        for index, confidence in zip(members, least.tolist(), strict=True):
            measured[index] = confidence
    return measured


def are_same(logits: Tensor, others: Tensor, of_exit: Exit) -> bool:
    """Whether two outputs for a row name the same label, or the same ones for all its words."""
    one, other = (_counted(each, of_exit).argmax(dim=-1) for each in (logits, others))
    return bool((one == other).all())


def _counted(logits: Tensor, of_exit: Exit) -> Tensor:
    """Return the answers that count: `[m, C]`."""
    if logits.ndim == 1:
        return logits[None]
    return logits if of_exit.answers is None else logits[list(of_exit.answers)]
