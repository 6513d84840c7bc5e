from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.adapters.bank import HplmArtifact, read_artifact, write_artifact
from backends.adapters.bottleneck import BottleneckAdapter, Head
from backends.errors import CorruptFileError, FingerprintMismatchError, FormatVersionError, InvalidArgumentError
from backends.storage import publishing, read_json, write_json

LAYERS, WIDTH, HIDDEN, LABELS = 2, 4, 16, 3


def random_adapter(width: int = WIDTH) -> BottleneckAdapter:
    return BottleneckAdapter(
        torch.randn(LAYERS, width, HIDDEN),
        torch.randn(LAYERS, width),
        torch.randn(LAYERS, HIDDEN, width),
        torch.randn(LAYERS, HIDDEN),
    )


def artifact() -> HplmArtifact:
    head = Head(torch.randn(LABELS, HIDDEN), torch.randn(LABELS))
    return HplmArtifact("acme/x", "f00d", "classification", ("a", "b", "c"), "mean", random_adapter(), head)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, artifact())
    return tmp_path / "x@1"


def test_round_trip(tmp_path: Path) -> None:
    written = artifact()
    with publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, written)
    read = read_artifact(tmp_path / "x@1", "f00d")
    assert (read.hplm, read.labels, read.pooling) == (written.hplm, written.labels, written.pooling)
    for name, tensor in read.adapter.named().items():
        assert torch.equal(tensor, getattr(written.adapter, name).half())
    assert torch.equal(read.head.weight, written.head.weight.half())


def test_an_adapter_of_another_root_is_refused(folder: Path) -> None:
    with pytest.raises(FingerprintMismatchError, match=r"f00d.*beef"):
        read_artifact(folder, "beef")


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_weights_are_refused(folder: Path, damage: str) -> None:
    path = folder / "weights.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-100])
    else:
        path.unlink()
    with pytest.raises(CorruptFileError, match=r"weights\.safetensors"):
        read_artifact(folder, "f00d")


def test_a_changed_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("mean", "cls"))
    with pytest.raises(CorruptFileError, match="checksum"):
        read_artifact(folder, "f00d")


def test_a_newer_format_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    write_json(path, {**read_json(path), "format_version": 2})
    with pytest.raises(FormatVersionError, match="version 2"):
        read_artifact(folder, "f00d")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_weights_that_are_not_finite_are_never_written(tmp_path: Path, value: float) -> None:
    bad = artifact()
    bad.adapter.up_bias[0, 0] = value  # 1e6 is infinite in fp16
    with pytest.raises(InvalidArgumentError, match="up_bias"), publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, bad)
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_do_not_fit_together() -> None:
    good = random_adapter()
    with pytest.raises(InvalidArgumentError, match="up_weight"):
        replace(good, up_weight=good.up_weight[:, :, 1:])
    with pytest.raises(InvalidArgumentError, match="labels"):
        replace(artifact(), labels=("a", "b"))
