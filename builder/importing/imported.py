"""The content of another library's folder, before it meets a root's names and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.importing.heads import ImportedHead
from builder.importing.modules import LayerModule


@dataclass(frozen=True)
class ImportedFolder:
    """`base` is the pretrained model by the name that the folder has for it; `upper_only` says how to train it so.

    `origin` goes into the manifest, for people.
    """

    modules: Sequence[LayerModule]
    head: ImportedHead | None
    task: str | None
    base: str | None
    upper_only: str
    origin: Mapping[str, Any]
