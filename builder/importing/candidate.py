"""A folder of another library beside the root that it is to run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.root.store import RootFolder
from builder.importing.base import Base, pooler
from builder.importing.heads import ImportedHead, with_pooler
from builder.importing.imported import ImportedFolder
from builder.importing.labels import require_labels


@dataclass(frozen=True)
class Candidate:
    """An adapter that fits the root's upper layers, and what is known of the rest.

    `given_labels` come with the request, in the order of the head's outputs; `compared_by` is how the
    base was found to be the root's own.
    """

    home: Home
    path: Path
    root: RootFolder
    folder: ImportedFolder
    adapters: AdapterSet
    given_labels: tuple[str, ...] | None
    base: Base
    compared_by: str

    @property
    def origin(self) -> dict[str, Any]:
        """Its origin, for people."""
        return {**self.folder.origin, "base": self.folder.base, "base_compared_by": self.compared_by}

    def knows_labels(self, head: ImportedHead) -> bool:
        return (self.given_labels or head.labels) is not None

    def labels(self, head: ImportedHead) -> tuple[str, ...]:
        return require_labels(head, self.given_labels)

    def complete_head(self, head: ImportedHead) -> Head:
        """Add the pretrained model's pooler where the head stands on it."""
        complete = head.head
        if head.needs_pooler:
            complete = with_pooler(head, pooler(self.home, self.root.manifest, self.base))
        if complete.hidden_size != self.root.geometry.hidden_size:
            raise InvalidArgumentError(
                f"{self.path}: the head reads {complete.hidden_size} numbers a text, the root's layers give "
                f"{self.root.geometry.hidden_size}; it is for another base"
            )
        return complete
