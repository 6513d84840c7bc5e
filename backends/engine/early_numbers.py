"""Early answers of regressions: two numbers, the value and how far from the full answer it is likely to be.

Both are of one unit, the `scale` of an early step: the standard deviation of the full answers.
"""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt
from torch import Tensor

Floats = npt.NDArray[np.float64]
_MEAN_OVER_DEVIATION = math.sqrt(2 / math.pi)
"""A normal distribution's mean distance from its middle."""


def number_confidences(outputs: Tensor, temperatures: Floats) -> Floats:
    """Return one less the distance that is likely between early and full answers; 0 where it is no number.

    Args:
        outputs: Values, and logarithms of the variances of the distance in units of the scale.
        temperatures: Make the deviations true.

    Shape: `[N, 2]`, `[N]` → `[N]`
    """
    values, log_variances = outputs.double().numpy().T
    with np.errstate(over="ignore", invalid="ignore"):
        distances = _MEAN_OVER_DEVIATION * temperatures * np.exp(log_variances / 2)
    found: Floats = np.where(np.isfinite(values), np.nan_to_num(np.clip(1 - distances, 0, 1), nan=0.0), 0.0)
    return found


def losses(early: Tensor, full: Tensor, scale: float) -> Floats:
    """Return the distances of early values from full ones in units of the scale, 1 at most.

    Shape: `[N, 2]`, `[N, 1]` → `[N]`
    """
    distances = (early[:, 0].double() - full[:, 0].double()).abs() / scale
    found: Floats = distances.clamp_max(1).numpy()
    return found


def differ(early: Tensor, full: Tensor, scale: float) -> bool:
    """Draw whether two answers count as different: as likely as their loss, so that its mean can be tested as a share.

    Shape: `[2]`, `[1]`
    """
    return random.random() < float(losses(early[None], full[None], scale)[0])
