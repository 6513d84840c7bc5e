"""The model repository as it was when a server was first started: an export beside it changes no restart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from backends.deadline_batcher import FILE_NAME
from backends.errors import HplmError, UnavailableError
from backends.storage import read_errors_are_clear
from builder.export.model_names import ENSEMBLE, LOWER, UPPER, is_later_stage

_CONFIGURATION = "config.pbtxt"
_COMPILED = "__pycache__"
_MOST_READS = 10


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
        """Read the models of an export, as far as they are there.

        Raises:
            UnavailableError: It is exported again and again meanwhile.
        """
        before = cls._read_once(repository)
        for _ in range(_MOST_READS):
            again = cls._read_once(repository)
            if again == before:
                return again
            before = again  # an export came between: some files may have been the old ones
        raise UnavailableError(f"{repository} changes all the time; start again when it is exported")

    @classmethod
    def _read_once(cls, repository: Path) -> Self:
        folders: list[Path] = []
        files: dict[Path, bytes] = {}
        with read_errors_are_clear(repository):
            for folder, names in _walked(repository):
                folders.append(folder.relative_to(repository))
                for path in (folder / name for name in names):
                    with suppress(FileNotFoundError):
                        files[path.relative_to(repository)] = path.read_bytes()
        return cls(tuple(folders), files)

    @property
    def is_batched_by_triton(self) -> bool:
        """Whether rows for `hplm_upper` wait in Triton's queue, which knows neither deadlines nor admission.

        A configuration that only Triton can read counts as one of mode `engine`.
        """
        from builder.export.config import from_text  # it takes a good part of a second, beside a server that loads

        text = self.files.get(Path(UPPER) / _CONFIGURATION, b"").decode(errors="replace")
        with suppress(HplmError):
            return from_text(text).parameters.get("mode") == "triton"
        return False

    def configured(self, configurations: Mapping[str, str]) -> Self:
        """Give models another `config.pbtxt`."""
        texts = {Path(model) / _CONFIGURATION: text.encode() for model, text in configurations.items()}
        return replace(self, files={**self.files, **texts})

    def lay_out(self, folder: Path, repository: Path) -> None:
        """Write the files into a folder, and link what else is in the repository.

        The plugin is linked, too, while it is the repository's: from the temporary folders of some machines no library
        can be loaded.
        """
        folder.mkdir()
        with suppress(FileNotFoundError):  # all that was exported is known all the same
            for model in repository.absolute().iterdir():
                if not _is_exported(model.name):
                    (folder / model.name).symlink_to(model)
        for path in self.folders:
            (folder / path).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            there = repository.absolute() / path
            if path.name == FILE_NAME and _holds(there, content):
                (folder / path).symlink_to(there)
            else:
                (folder / path).write_bytes(content)


def _walked(repository: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders of the models in order, with the names of their files."""
    for model in sorted(_models_of(repository)):
        for folder, below, names in os.walk(repository / model, onerror=_unless_absent, followlinks=True):
            below[:] = sorted(name for name in below if name != _COMPILED)
            yield Path(folder), sorted(names)


def _models_of(repository: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return [path.name for path in repository.iterdir() if _is_exported(path.name)]
    return []


def _is_exported(model: str) -> bool:
    return model in (ENSEMBLE, LOWER, UPPER) or is_later_stage(model)


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
