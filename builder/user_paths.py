"""Paths as users write them, in files and on the command line."""

from __future__ import annotations

from pathlib import Path


def user_path(text: str) -> Path:
    """A path with the home folder in place of `~`; a `~name` of nobody is taken as it is."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; not where the path is longer than paths can be."""
    try:
        return path.is_dir()
    except OSError:
        return False
