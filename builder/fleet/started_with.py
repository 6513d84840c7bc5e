"""What a server was started with, and what it would be started with now: release, export, roots."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from backends.errors import NotFoundError, UnavailableError
from backends.held_roots import Roots, in_words

PACKAGES = ("backends", "builder", "cli", "loadtest", "model_repository", "workload")
"""What the distribution installs side by side, in a clone too."""
_DISTRIBUTION = "hplm"
_INSTALLED_IN = Path(__file__).parents[2]
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class StartedWith:
    """What decides how a server answers, apart from the registry.

    Attributes:
        release: As `installed_release` says it; empty where it is unknown.
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
    """Return the release on the disk, such as `0.1.0 (3fa2c1d0)`: its version, and a checksum of its Python sources.

    An upgrade changes it while this program runs, so it is read anew at each call. Between two versions a clone that is
    pulled changes only the checksum. Packages that this one depends on do not count.

    Raises:
        UnavailableError: There is none for the moment that an upgrade takes.
    """
    try:
        version = importlib.metadata.version(_DISTRIBUTION)
        sources = sorted(each for package in PACKAGES for each in (_INSTALLED_IN / package).rglob("*.py"))
        return f"{version} ({_short(_checksum(_INSTALLED_IN, sources))})"
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError) as error:
        raise UnavailableError(f"{_DISTRIBUTION} is not installed, or is being upgraded; try again later") from error


def release_if_known() -> str:
    """Return the installed release, or nothing while it is being replaced."""
    try:
        return installed_release()
    except (UnavailableError, OSError):
        return ""


def export_checksum(repository: Path) -> str:
    """Compute the XXH3-128 of all files that Triton is told to load, with their names.

    Raises:
        NotFoundError: There is no repository.
    """
    files = sorted(each for each in repository.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    if not files:
        raise NotFoundError(f"there is no model repository at {repository}; make one with `hplm export`")
    return _checksum(repository, files)


def _checksum(folder: Path, files: Sequence[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _short(checksum: str) -> str:
    return checksum[:_SHOWN_DIGITS] or "unknown"
