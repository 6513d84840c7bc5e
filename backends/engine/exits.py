"""Exits: where a row may leave the layers of its stack, and what is known of it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.engine.early_numbers import differ, number_confidences
from backends.engine.entities import served_tags
from backends.engine.pruning import Prunable

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
        scale: Of the numbers of a regression, as in its early step; None of labels.
        later: Where the row may leave if it does not leave here; none of a row that may lose words.
        prunable: Which words the row loses where it is not sure enough to leave here; None if it keeps all.
        is_compared: It goes on, with all its words, also where it is sure enough: its answers are to be compared.
    """

    after: int
    head: Head
    temperature: float
    threshold: float | None
    answers: Sequence[int] | None = None
    scale: float | None = None
    later: Exit | None = None
    prunable: Prunable | None = None
    is_compared: bool = False

    def lets_go(self, confidence: float) -> bool:
        """Whether an answer is sure enough here."""
        return self.threshold is None or confidence >= self.threshold

    def lost_words(self, confidence: float) -> Prunable | None:
        """Return which words a row loses here whose answer is so sure."""
        return None if self.lets_go(confidence) else self.prunable


class Early(NamedTuple):
    """A row's answer at its exit.

    Attributes:
        logits: In fp32 on the CPU, `[C]`, or `[L, C]` without pooling; `[2]` of a regression.
        confidence: Of the answer, or of the least sure word; 1 where there is no word, and 0 where it is no number.
        leaves: Whether the row passes no more layers.
        kept: Share of its tokens that passes the others; None if none were chosen.
    """

    logits: Tensor
    confidence: float
    leaves: bool
    kept: float | None = None


def cuts_of(exits: Iterable[Exit | None], num_layers: int) -> list[int]:
    """Return the numbers of layers after which rows may leave, in order."""
    cuts = set[int]()
    for each in exits:
        while each is not None:
            cuts.add(each.after)
            each = each.later
    return sorted(cut for cut in cuts if 0 < cut < num_layers)


def confidences(logits: Sequence[Tensor], exits: Sequence[Exit]) -> list[float]:
    """Return how sure the answers of rows are, in few array operations for all."""
    counted = [_counted(each, one) for each, one in zip(logits, exits, strict=True)]
    measured = [1.0] * len(counted)  # where no answer counts, none is doubtful
    of_labels = [index for index, each in enumerate(counted) if len(each) and exits[index].scale is None]
    for width in {counted[index].shape[1] for index in of_labels}:
        members = [index for index in of_labels if counted[index].shape[1] == width]
        sizes = [len(counted[index]) for index in members]
        temperatures = np.repeat([exits[index].temperature for index in members], sizes)
        scaled = torch.cat([counted[index] for index in members]).double() / torch.from_numpy(temperatures)[:, None]
        best = torch.softmax(scaled, dim=1).amax(dim=1).numpy()
        least = np.fmax(np.minimum.reduceat(best, np.cumsum([0, *sizes[:-1]])), 0.0)  # 0 where it is no number
        for index, confidence in zip(members, least.tolist(), strict=True):
            measured[index] = confidence
    if of_numbers := [index for index, each in enumerate(exits) if each.scale is not None]:
        outputs = torch.stack([logits[index] for index in of_numbers])
        found = number_confidences(outputs, np.array([exits[index].temperature for index in of_numbers]))
        for index, confidence in zip(of_numbers, found.tolist(), strict=True):
            measured[index] = confidence
    return measured


def are_same(logits: Tensor, others: Tensor, of_exit: Exit, labels: tuple[str, ...]) -> bool:
    """Whether an exit's output is served as the full one would be: one label, or tags of words; numbers nearly may."""
    if of_exit.scale is not None:
        return not differ(logits, others, of_exit.scale)
    one, other = (_counted(each, of_exit) for each in (logits, others))
    if logits.ndim == 1:
        return bool(one.argmax() == other.argmax())
    return bool((served_tags(one, labels) == served_tags(other, labels)).all())


def _counted(logits: Tensor, of_exit: Exit) -> Tensor:
    """Return the answers that count: `[m, C]`."""
    if logits.ndim == 1:
        return logits[None]
    return logits if of_exit.answers is None else logits[list(of_exit.answers)]
