"""The checkpoint of a long training: written whole or not at all, and resumed with the same inputs only."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backends.storage import replacing

LOGGER = logging.getLogger(__name__)
_FORMAT_VERSION = 2
"""The format of a checkpoint: 1 named no format, and each kind of training had its own entries."""


@dataclass(frozen=True)
class Checkpoint:
    """A file beside the build; `inputs` names everything that the training depends on."""

    path: Path
    inputs: str

    def save(self, content: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # a cache may be cleared at any time
        with replacing(self.path) as file:
            try:
                torch.save({**content, "inputs": self.inputs, "format": _FORMAT_VERSION}, file)
            except RuntimeError as error:
                # The library's writer hides what the file said.
                raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None

    def load(self) -> dict[str, Any] | None:
        """Read the last checkpoint; None where it is unreadable, of another release or of other inputs."""
        if not self.path.exists():
            return None
        try:
            content: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # every kind of damage raises another type
            LOGGER.warning("checkpoint %s is not readable (%s); starting again", self.path.name, type(error).__name__)
            return None
        if content.get("format") != _FORMAT_VERSION:
            LOGGER.warning("checkpoint %s was written by another release; starting again", self.path.name)
            return None
        if content.get("inputs") != self.inputs:
            LOGGER.warning("checkpoint %s was made from other inputs; starting again", self.path.name)
            return None
        return content

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
