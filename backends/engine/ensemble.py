"""Ensembles: answers of rows that passed all layers, mixed with what was known of them at their exits.

Usage:
    mixtures[index] = Mixture(early_logits, ladder, ensemble)  # while the batch runs
    logits_of = mixed(full_logits, mixtures)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.adapters.ladder import Ensemble, Ladder

Numbers = npt.NDArray[np.floating[Any]]
_LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""So that no answer of healthy rows has an infinite logit, which would be taken for a fault."""


class Mixture(NamedTuple):
    """What one row's full answer is to be mixed with: its early logits, `[C]`, by a ladder that has this ensemble."""

    early: Tensor
    ladder: Ladder
    ensemble: Ensemble


def mixed(full: Sequence[Tensor], mixtures: Mapping[int, Mixture]) -> dict[int, Tensor]:
    """Mix some of the rows, in few array operations for all; a row of NaN or infinity is left out.

    Shape: full `[C]` of each row; the result `[C]` by a row's index, in fp32
    """
    found: dict[int, Tensor] = {}
    for width in {len(each.early) for each in mixtures.values()}:
        members = {index: each for index, each in mixtures.items() if len(each.early) == width}
        early, whole = (
            torch.stack(each).numpy()
            for each in ([each.early for each in members.values()], [full[index] for index in members])
        )
        settings = [
            (each.ladder.early.temperature, each.ladder.full_temperature, each.ensemble.full_weight)
            for each in members.values()
        ]
        with np.errstate(invalid="ignore"):
            logits = torch.from_numpy(log_mixed(early, whole, *np.array(settings).T[..., None]))
        are_healthy = (np.isfinite(early) & np.isfinite(whole)).all(axis=1)
        found |= {index: row for index, row, is_healthy in zip(members, logits, are_healthy, strict=True) if is_healthy}
    return found


def log_mixed(
    early: Numbers,
    full: Numbers,
    early_temperature: float | Numbers,
    full_temperature: float | Numbers,
    full_weight: float | Numbers,
) -> npt.NDArray[np.float32]:
    """Return the logarithms of the weighted means of both answers' probabilities.

    Shape: early and full `[N, C]`, also the result; the others one number, or `[N, 1]`
    """
    of_full, of_early = _probabilities(full, full_temperature), _probabilities(early, early_temperature)
    means = full_weight * of_full + (1 - full_weight) * of_early
    logarithms: npt.NDArray[np.float32] = np.log(np.maximum(means, _LEAST_PROBABILITY)).astype(np.float32)
    return logarithms


def _probabilities(logits: Numbers, temperature: float | Numbers) -> Numbers:
    scaled = logits.astype(np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares: Numbers = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares
