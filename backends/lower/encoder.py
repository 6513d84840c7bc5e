"""A domain's own lower layers: a weight file beside its table, named in a manifest.

A domain that was not pretrained further has none; what its table lacks is then computed by its parent's, and in the end
by the root's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from backends.errors import CorruptFileError, FingerprintMismatchError
from backends.fields import Fields, read_fields
from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder, float16_state
from backends.storage import check_file, file_checksum, read_tensors, write_json, write_tensors

LAYERS_FORMAT_VERSION = 1
MANIFEST_NAME = "lower.json"
WEIGHTS_NAME = "lower.safetensors"
_SHARED_WITH_ROOT = "word_embeddings.weight"


def domain_encoder(
    root: RootFolder, folders: Sequence[Path], root_encoder: FragmentEncoder | None = None
) -> FragmentEncoder:
    """The lower layers behind a domain's chain of folders, nearest first: frozen, fp32.

    Encoders of one `root_encoder` share its word embeddings, the largest part of them.
    """
    shared = root_encoder or root.lower()
    for folder in folders:
        if has_own_layers(folder):
            return _own_layers(root, folder, shared)
    return shared


def has_own_layers(folder: Path) -> bool:
    """Whether a domain version was pretrained further; a missing weight file is an error once it is read."""
    return (folder / MANIFEST_NAME).exists()


def read_training(folder: Path) -> dict[str, Any]:
    """The training of a folder's own lower layers, as their manifest has it."""
    return dict(_manifest(folder).mapping("training")) if has_own_layers(folder) else {}


def write_layers(folder: Path, encoder: FragmentEncoder, root_fingerprint: str, training: Mapping[str, Any]) -> None:
    """Add a domain's lower layers to its (staging) folder, fp16, the manifest last; `training` is for people."""
    path = folder / WEIGHTS_NAME
    write_tensors(path, {name: tensor for name, tensor in float16_state(encoder).items() if name != _SHARED_WITH_ROOT})
    content = {
        "format_version": LAYERS_FORMAT_VERSION,
        "root_fingerprint": root_fingerprint,
        "training": dict(training),
        "size_bytes": path.stat().st_size,
        "checksum_of_weights": file_checksum(path),
    }
    write_json(folder / MANIFEST_NAME, content)


def verify_layers(folder: Path) -> None:
    """Compare a folder's own lower layers with their checksum."""
    _check_weights(folder, _manifest(folder))


def _own_layers(root: RootFolder, folder: Path, shared: FragmentEncoder) -> FragmentEncoder:
    state = {name: tensor.float() for name, tensor in _read(root.fingerprint, folder).items()}
    encoder = copy.deepcopy(shared, {id(shared.word_embeddings): shared.word_embeddings})
    try:
        encoder.load_state_dict({**state, _SHARED_WITH_ROOT: shared.word_embeddings.weight}, assign=True)
    except RuntimeError as error:
        raise CorruptFileError(f"{folder / WEIGHTS_NAME} does not hold this root's lower layers: {error}") from error
    return encoder.eval().requires_grad_(False)


def _read(fingerprint: str, folder: Path) -> dict[str, Tensor]:
    manifest = _manifest(folder)
    if (of_root := manifest.text("root_fingerprint")) != fingerprint:
        raise FingerprintMismatchError(
            f"{folder} holds lower layers of the root with fingerprint {of_root}; they are used with {fingerprint}"
        )
    _check_weights(folder, manifest)
    return read_tensors(folder / WEIGHTS_NAME)


def _check_weights(folder: Path, manifest: Fields) -> None:
    check_file(folder / WEIGHTS_NAME, manifest.whole("size_bytes"), manifest.text("checksum_of_weights"))


def _manifest(folder: Path) -> Fields:
    return read_fields(folder / MANIFEST_NAME, LAYERS_FORMAT_VERSION)
