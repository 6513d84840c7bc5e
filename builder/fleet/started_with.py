"""What a server was started with, and what it would be started with now: release, export, roots."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

import xxhash

from backends.errors import NotFoundError, UnavailableError
from backends.held_roots import Roots, in_words

_DISTRIBUTION = "hplm"
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class StartedWith:
    """What decides how a server answers, apart from the registry.

    Attributes:
        release: The installed one.
        export: Checksum of the model repository; empty where it could not be read.
        roots: Those that it holds.
    """

    release: str
    export: str
    roots: Roots

    @classmethod
    def now(cls, repository: Path, roots: Roots) -> StartedWith:
        """Look at what is installed and exported.

        Raises:
            NotFoundError: Nothing is exported.
            UnavailableError: As `installed_release`.
        """
        return cls(installed_release(), export_checksum(repository), roots)

    def changes_to(self, wanted: StartedWith) -> list[str]:
        """Say what is different, a phrase each."""
        changes = []
        if self.release != wanted.release:
            changes.append(f"release {self.release or 'unknown'} → {wanted.release}")
        if self.export != wanted.export:
            changes.append(f"export {_short(self.export)} → {_short(wanted.export)}")
        if self.roots != wanted.roots:
            changes.append(f"roots {in_words(self.roots)} → {in_words(wanted.roots)}")
        return changes


def installed_release() -> str:
    """Return the release on the disk, which an upgrade changes while this program runs.

    Raises:
        UnavailableError: There is none for the moment that an upgrade takes.
    """
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise UnavailableError(f"{_DISTRIBUTION} is not installed, or is being upgraded; try again later") from error


def export_checksum(repository: Path) -> str:
    """Compute the XXH3-128 of all files that Triton is told to load, with their names.

    Raises:
        NotFoundError: There is no repository.
    """
    files = sorted(each for each in repository.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    if not files:
        raise NotFoundError(f"there is no model repository at {repository}; make one with `hplm export`")
    digest = xxhash.xxh3_128()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(repository).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _short(export: str) -> str:
    return export[:_SHOWN_DIGITS] or "unknown"
