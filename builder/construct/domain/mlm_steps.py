"""Steps of the masked-LM trainings unless others are asked for; apart from these, so that asking imports no library."""

from __future__ import annotations

LOWER_STEPS = 150
HEAD_STEPS = 300
