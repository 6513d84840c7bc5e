"""Models on the Hugging Face Hub, or on the server that the environment variable HF_ENDPOINT names."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from backends.errors import NotFoundError, UnavailableError
from backends.storage import disk_full_is_an_error
from builder.construct.root.model_folder import require_model_folder, weights_files

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
