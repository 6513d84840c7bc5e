"""The layers as the export of a home has them served: what is certified is certified of these."""

from __future__ import annotations

import torch

from backends.engine.settings import EngineSettings
from backends.engine.stack import StackSettings
from backends.errors import InvalidArgumentError
from backends.home import Home
from builder.export.in_force import effective_settings
from builder.export.rendered import upper_settings


def served_stack(home: Home) -> StackSettings:
    """Return the settings of the served stack; of those of a GPU only where one is.

    Raises:
        InvalidArgumentError: The export is for a GPU, and none is here.
    """
    settings, on_gpu = upper_settings(home)
    if on_gpu and not torch.cuda.is_available():
        raise InvalidArgumentError("the export is for a GPU, which PyTorch does not find here; select where it serves")
    return EngineSettings.from_model(settings, "cuda:0" if on_gpu else "cpu").stack


def warning_of_missing(home: Home) -> str | None:
    """Say that the export shortens fragments, of which nothing is certified."""
    missing = effective_settings(home.repository).get("lower missing", "compute")
    if missing == "compute":
        return None
    return f"the export has --missing {missing}: the certificate is of texts whose fragments are all there"
