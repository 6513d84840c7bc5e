"""The error of calibration that no confidence can be below."""

from __future__ import annotations

import numpy as np

from builder.construct.tasks.calibration import Floats, calibration_error

_DRAWS = 100


def calibration_floor(confidence: Floats, rng: np.random.Generator) -> float:
    """Return the error that true confidences would show on as many rows, by chance."""
    draws = rng.random((_DRAWS, len(confidence))) < confidence
    return float(np.mean([calibration_error(confidence, is_right) for is_right in draws]))
