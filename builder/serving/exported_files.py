"""The model repository as it was when a server was first started: an export beside it changes no restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from backends.storage import read_errors_are_clear
from builder.export.models import ENSEMBLE, LOWER, UPPER

_MODELS = (ENSEMBLE, LOWER, UPPER)
_CONFIGURATION = "config.pbtxt"
_COMPILED = "__pycache__"


@dataclass(frozen=True)
class ExportedFiles:
    """What an export has written, by paths in the repository; models that an operator has put beside it are no part.

    Attributes:
        folders: Triton wants a version folder of the ensemble, too, which has no file.
        files: Their content.
    """

    folders: tuple[Path, ...]
    files: Mapping[Path, bytes]

    @classmethod
    def read(cls, repository: Path) -> Self:
        """Read the models of an export, as far as they are there."""
        with read_errors_are_clear(repository):
            found = [path for model in _MODELS for path in sorted((repository / model).rglob("*"))]
            return cls(
                tuple(path.relative_to(repository) for path in found if path.is_dir() and path.name != _COMPILED),
                {
                    path.relative_to(repository): path.read_bytes()
                    for path in found
                    if path.is_file() and path.parent.name != _COMPILED
                },
            )

    def configured(self, configurations: Mapping[str, str]) -> Self:
        """Give models another `config.pbtxt`."""
        texts = {Path(model) / _CONFIGURATION: text.encode() for model, text in configurations.items()}
        return replace(self, files={**self.files, **texts})

    def lay_out(self, folder: Path, repository: Path) -> None:
        """Write the files into a folder, and link what else is in the repository."""
        folder.mkdir()
        for model in repository.absolute().iterdir():
            if model.name not in _MODELS:
                (folder / model.name).symlink_to(model)
        for path in self.folders:
            (folder / path).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
