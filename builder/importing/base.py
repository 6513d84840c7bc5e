"""Whether an adapter was made for the pretrained model that a root was made from, and what that model keeps itself.

Two models of one size take each other's adapters without an error and answer nonsense, so an import has to know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from backends.errors import FingerprintMismatchError, HplmError, InvalidArgumentError
from backends.home import Home
from backends.root.store import RootManifest
from builder.construct.root.model_folder import weights_checksum, weights_files
from builder.construct.root.source import locate_recorded
from builder.importing.files import read_weights
from builder.user_paths import is_folder, user_path


@dataclass(frozen=True)
class Base:
    """The stated base of an adapter: its folder, or that it is the root's own.

    With `is_uploaded` the adapter comes from elsewhere: a folder that it names is none of this machine's, and not read.
    """

    folder: Path | None = None
    vouched: bool = False
    is_uploaded: bool = False


def require_same_base(named: str | None, root: RootManifest, base: Base) -> str:
    """Compare an adapter's base, `named` as in its folder, by its weights if they are at hand, else by its name.

    Returns what was compared.
    """
    if base.folder is not None:
        _require_same_weights(base.folder, root)
        return "weights"
    if base.vouched:
        return "nothing"
    if named and not base.is_uploaded and is_folder(local := user_path(named)) and weights_files(local):
        _require_same_weights(local, root)
        return "weights"
    source = str(root.origin.get("source", ""))
    if named and _model_name(named) == _model_name(source):
        return "name"
    raise FingerprintMismatchError(
        f"the adapter was made for {named or 'a base that it does not name'}, root {root.name!r} ({root.fingerprint}) "
        f"was made from {source} (weights {root.origin.get('weights_checksum')}); if these are the same, name the "
        "adapter's base with --base FOLDER, whose weights are compared, or vouch for it with --same-base"
    )


def pooler(home: Home, root: RootManifest, base: Base) -> tuple[Tensor, Tensor]:
    """Weight and bias of the dense layer that BERT has over its first token; a root does not keep it."""
    wanted = "the head stands on the pretrained model's pooler, which is not in the adapter's folder"
    folder = base.folder
    if folder is None:
        try:
            folder = locate_recorded(root, home.downloads)
            _require_same_weights(folder, root)
        except HplmError as error:
            raise InvalidArgumentError(f"{wanted}; name the model with --base FOLDER ({error})") from error
    found: dict[str, Tensor] = {}
    for path in weights_files(folder):
        for name, tensor in read_weights(folder, (path.name,)).items():
            if ".pooler.dense." in f".{name}":
                found[name.rpartition(".")[2]] = tensor
    if set(found) != {"weight", "bias"}:
        raise InvalidArgumentError(f"{wanted} nor in {folder}; train it with modules_to_save=['classifier', 'pooler']")
    return found["weight"], found["bias"]


def _require_same_weights(folder: Path, root: RootManifest) -> None:
    if not weights_files(folder):
        raise InvalidArgumentError(f"{folder} holds no pretrained model")
    theirs, ours = weights_checksum(folder), root.origin.get("weights_checksum")
    if theirs != ours:
        raise FingerprintMismatchError(
            f"the adapter's base {folder} has weights {theirs}, but root {root.name!r} ({root.fingerprint}) was made "
            f"from {root.origin.get('source')} with weights {ours}"
        )


def _model_name(source: str) -> str:
    """Return the last part of a hub's name or a folder's path, without a revision or a package's version."""
    return re.split("@|==", source.rstrip("/").rpartition("/")[2])[0].removeprefix("pip:").lower()
