"""Names of the models of a repository: three, and the later stages of the upper one where each is a model."""

from __future__ import annotations

import re
from pathlib import Path

ENSEMBLE = "hplm"
LOWER = "hplm_lower"
UPPER = "hplm_upper"
"""All of the upper layers, or their first stage."""
_STAGE = "hplm_stage_"
_STAGE_NAME = re.compile(f"{_STAGE}[1-9][0-9]?")


def stage_model(stage: int) -> str:
    """Return the model of a stage; 0 is the first."""
    return f"{_STAGE}{stage}" if stage else UPPER


def is_later_stage(model: str) -> bool:
    return _STAGE_NAME.fullmatch(model) is not None


def code_model(model: str) -> str:
    """Return the model whose code another one runs, or its own."""
    return UPPER if is_later_stage(model) else model


def exported_models(repository: Path) -> list[str]:
    """Return the models with code that an export has rendered, as far as they are there."""
    there = [path.name for path in repository.glob(f"{_STAGE}*") if is_later_stage(path.name)]
    return [*(name for name in (LOWER, UPPER) if (repository / name).exists()), *sorted(there)]
