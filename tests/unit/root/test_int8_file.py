"""The file of a root in int8: what is written is read, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backends.errors import (
    CorruptFileError,
    FileError,
    FingerprintMismatchError,
    FormatVersionError,
    UnreadableFileError,
)
from backends.root.geometry import RootGeometry
from backends.root.int8_file import SMOOTHED, Int8Fidelity, Quantisation, read_fidelity, read_smoothing
from backends.storage import read_json, write_json

GEOMETRY = RootGeometry(100, 8, 16, 2, 1, 2, 32, 2, 1e-12, "gelu")
FIDELITY = Int8Fidelity(
    0.9995,
    {"acme/area@1": 0.99, "acme/topic@2": 0.97},
    96,
    "VNNI",
    ("acme/lost@1",),
    0.75,
    "versions",
    "texts and versions",
    {"acme/area@1": 300, "acme/topic@2": 100},
)


def written(folder: Path) -> Quantisation:
    smoothing = {(layer, product): torch.rand(8) + 0.5 for layer in range(2) for product in SMOOTHED}
    quantisation = Quantisation("root1", smoothing, FIDELITY)
    quantisation.write(folder)
    return quantisation


def test_what_is_written_is_read(tmp_path: Path) -> None:
    quantisation = written(tmp_path)
    smoothing = read_smoothing(tmp_path, "root1", GEOMETRY)
    assert smoothing is not None and smoothing.keys() == quantisation.smoothing.keys()
    for key, channels in quantisation.smoothing.items():
        torch.testing.assert_close(smoothing[key], channels, rtol=1e-4, atol=0)
    fidelity = read_fidelity(tmp_path, "root1")
    assert fidelity == FIDELITY and (fidelity.num_compared, fidelity.num_changed) == (400, 6)
    assert fidelity.equal_labels_of("acme/topic", 2) == 0.97 and fidelity.equal_labels_of("acme/topic", 1) is None


def test_a_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "int8.json"
    content = read_json(path)
    for later in ("instructions", "unreadable", "known_fragments", "conditions", "inputs", "num_labels"):
        del content["fidelity"][later]
    write_json(path, content)
    fidelity = read_fidelity(tmp_path, "root1")
    assert fidelity == Int8Fidelity(FIDELITY.cosine, FIDELITY.equal_labels, FIDELITY.texts)
    assert (fidelity.num_compared, fidelity.num_changed) == (2 * 96, 4)


def test_a_root_may_have_none(tmp_path: Path) -> None:
    assert read_smoothing(tmp_path, "root1", GEOMETRY) is None and read_fidelity(tmp_path, "root1") is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"root_fingerprint": "root2"}, FingerprintMismatchError),
        ({"format_version": 2}, FormatVersionError),
        ({"format_version": "1"}, FormatVersionError),
        ({"smoothing": {}}, CorruptFileError),
        ({"smoothing": {f"{layer}.{product}": [1.0] * 7 for layer in range(2) for product in SMOOTHED}}, FileError),
        ({"smoothing": {f"{layer}.{product}": [0.0] * 8 for layer in range(2) for product in SMOOTHED}}, FileError),
        ({"smoothing": {f"{layer}.{product}": [1e-41] * 8 for layer in range(2) for product in SMOOTHED}}, FileError),
        ({"smoothing": {f"{layer}.{product}": ["x"] * 8 for layer in range(2) for product in SMOOTHED}}, FileError),
        ({"smoothing": []}, CorruptFileError),
    ],
)
def test_a_file_that_does_not_fit_is_rejected(tmp_path: Path, change: dict[str, Any], error: type[FileError]) -> None:
    written(tmp_path)
    write_json(tmp_path / "int8.json", read_json(tmp_path / "int8.json") | change)
    with pytest.raises(error, match=r"int8\.json"):
        read_smoothing(tmp_path, "root1", GEOMETRY)


def test_a_damaged_file_is_rejected(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "int8.json"
    path.write_text(path.read_text().replace("0.97", "0.98"))
    with pytest.raises(CorruptFileError):
        read_fidelity(tmp_path, "root1")


def test_a_file_that_the_disk_does_not_give_is_an_error_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "int8.json").mkdir()
    with pytest.raises(UnreadableFileError, match=r"int8\.json cannot be read"):
        read_smoothing(tmp_path, "root1", GEOMETRY)
    with pytest.raises(UnreadableFileError):
        read_fidelity(tmp_path, "root1")
