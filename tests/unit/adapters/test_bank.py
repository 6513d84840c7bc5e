from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapter_reference import random_bottleneck, random_lora
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact, read_artifact, write_artifact
from backends.adapters.head import Head
from backends.adapters.parts import Norm
from backends.errors import CorruptFileError, FingerprintMismatchError, FormatVersionError, InvalidArgumentError
from backends.registry.entries import DomainEntry, HplmEntry
from backends.storage import file_checksum, publishing, read_json, write_json, write_tensors
from seeds import SEED

RNG = random.Random(SEED)
LAYERS, WIDTH, HIDDEN, LABELS = 2, 4, 16, 3


def artifact(stored_dtype: str = "bf16") -> HplmArtifact:
    adapters = AdapterSet(
        {
            "attention": random_bottleneck(RNG, LAYERS, HIDDEN, WIDTH),
            "output": random_bottleneck(RNG, LAYERS, HIDDEN, 7, norm_first=True),
        },
        {"query": random_lora(RNG, LAYERS, HIDDEN, HIDDEN), "ffn_in": random_lora(RNG, LAYERS, HIDDEN, 24)},
        {"output": Norm(torch.randn(LAYERS, HIDDEN), torch.randn(LAYERS, HIDDEN))},
    )
    dense = torch.randn(HIDDEN, HIDDEN), torch.randn(HIDDEN)
    head = Head(torch.randn(LABELS, HIDDEN), torch.randn(LABELS), *dense, activation="gelu")
    return HplmArtifact(
        hplm="acme/x",
        root_fingerprint="f00d",
        task="classification",
        labels=("a", "b", "c"),
        pooling="mean",
        adapters=adapters,
        head=head,
        stored_dtype=stored_dtype,
        origin={"kind": "made up"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, artifact())
    return tmp_path / "x@1"


@pytest.mark.parametrize(
    ("stored_dtype", "dtype", "head_dtype"),
    [
        ("bf16", torch.bfloat16, torch.float16),
        ("fp16", torch.float16, torch.float16),
        ("fp32", torch.float32, torch.float32),
    ],
)
def test_round_trip(tmp_path: Path, stored_dtype: str, dtype: torch.dtype, head_dtype: torch.dtype) -> None:
    written = artifact(stored_dtype)
    with publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, written)
    read = read_artifact(tmp_path / "x@1", "f00d")
    for name in ("hplm", "labels", "pooling", "task", "origin", "stored_dtype"):
        assert getattr(read, name) == getattr(written, name)
    for stored, expected, stored_as in (
        (read.adapters.named(), written.adapters.named(), dtype),
        (read.head.named(), written.head.named(), head_dtype),
    ):
        assert stored.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(stored[name], tensor.to(stored_as))
    assert read.head.activation == "gelu"
    for site, bottleneck in written.adapters.bottlenecks.items():
        kept = read.adapters.bottlenecks[site]
        assert (kept.activation, kept.norm_first) == (bottleneck.activation, bottleneck.norm_first)


def write_version_1(folder: Path, labels: int = LABELS) -> dict[str, torch.Tensor]:
    """A folder as the first release wrote it."""
    tensors = {
        "adapter.down_weight": torch.randn(LAYERS, WIDTH, HIDDEN).half(),
        "adapter.down_bias": torch.randn(LAYERS, WIDTH).half(),
        "adapter.up_weight": torch.randn(LAYERS, HIDDEN, WIDTH).half(),
        "adapter.up_bias": torch.randn(LAYERS, HIDDEN).half(),
        "head.weight": torch.randn(labels, HIDDEN).half(),
        "head.bias": torch.randn(labels).half(),
    }
    folder.mkdir()
    write_tensors(folder / "weights.safetensors", tensors)
    manifest = {
        "format_version": 1,
        "kind": "bottleneck",
        "hplm": "acme/old",
        "root_fingerprint": "f00d",
        "task": "classification",
        "labels": ["a", "b", "c"],
        "pooling": "mean",
        "size_bytes": (folder / "weights.safetensors").stat().st_size,
        "weights_checksum": file_checksum(folder / "weights.safetensors"),
    }
    write_json(folder / "manifest.json", manifest)
    return tensors


def test_folders_of_the_first_format_are_read(tmp_path: Path) -> None:
    tensors = write_version_1(tmp_path / "old@1")
    read = read_artifact(tmp_path / "old@1", "f00d")
    assert list(read.adapters.parts()) == ["bottleneck.attention"]
    bottleneck = read.adapters.bottlenecks["attention"]
    assert (bottleneck.activation, bottleneck.norm_first) == ("relu", False)
    for name, tensor in bottleneck.named().items():
        assert torch.equal(tensor, tensors[f"adapter.{name}"])
    assert torch.equal(read.head.weight, tensors["head.weight"])
    assert read.head.dense_weight is None


def test_folders_of_the_second_format_are_read(folder: Path) -> None:
    """They held the matrices as they are; the third holds them turned, as the device does."""
    stored = load_file(folder / "weights.safetensors")
    expected = read_artifact(folder, "f00d").adapters.named()
    matrices = [name for name, tensor in stored.items() if tensor.ndim == 3]
    assert matrices and all(torch.equal(stored[name].transpose(1, 2), expected[name]) for name in matrices)
    path = folder / "weights.safetensors"
    write_tensors(path, {name: expected.get(name, tensor).contiguous() for name, tensor in stored.items()})
    manifest = read_json(folder / "manifest.json")
    sizes = {"size_bytes": path.stat().st_size, "weights_checksum": file_checksum(path)}
    write_json(folder / "manifest.json", {**manifest, "format_version": 2, **sizes})
    for name, tensor in read_artifact(folder, "f00d").adapters.named().items():
        assert torch.equal(tensor, expected[name]), name


def test_folders_of_the_third_format_are_read(tmp_path: Path) -> None:
    """They differ from the fourth in what this may hold: no bf16."""
    folder, written = tmp_path / "x@1", artifact("fp16")
    with publishing(folder) as staged:
        write_artifact(staged, written)
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "format_version": 3})
    read = read_artifact(folder, "f00d").adapters.named()
    for name, tensor in written.adapters.named().items():
        assert torch.equal(read[name], tensor.half()), name


def test_an_adapter_of_another_root_is_refused(folder: Path) -> None:
    with pytest.raises(FingerprintMismatchError, match=r"f00d.*beef"):
        read_artifact(folder, "beef")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"id": "globex/x"}, "hplm is 'acme/x'"),
        ({"task": "ner"}, "task is 'classification'"),
        ({"labels": ("a", "c", "b")}, "labels is"),
        ({"pair": True}, "pair is False"),
    ],
)
def test_weights_are_served_only_as_what_they_are(changed: dict[str, Any], complaint: str) -> None:
    domain = DomainEntry("tiny", "farm", 1, ("plots/farm@1",))
    entry = HplmEntry(1, "acme/x", 1, "classification", ("a", "b", "c"), domain, "bank/x@1")
    artifact().require_of(entry)
    with pytest.raises(CorruptFileError, match=f"bank/x@1 holds .*{complaint}"):
        artifact().require_of(replace(entry, **changed))
    artifact().require_fits(entry, HIDDEN)
    with pytest.raises(CorruptFileError, match=r"bank/x@1 holds a head for states of 16 numbers"):
        artifact().require_fits(entry, 2 * HIDDEN)


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
    write_json(path, {**read_json(path), "format_version": 5})
    with pytest.raises(FormatVersionError, match="version 5"):
        read_artifact(folder, "f00d")


def test_a_manifest_that_names_other_tensors_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = read_json(path)
    write_json(path, {**manifest, "parts": [*manifest["parts"], {"name": "lora.value", "width": 4}]})
    with pytest.raises(CorruptFileError, match="tensors"):
        read_artifact(folder, "f00d")


@pytest.mark.parametrize(
    ("stored_dtype", "value"),
    [
        *(("bf16", value) for value in (float("nan"), float("inf"), 3.4e38)),
        ("fp16", 1e6),
        *(("fp32", value) for value in (float("-inf"), 3.4e38)),
    ],
)
def test_weights_that_are_not_finite_are_never_written(tmp_path: Path, stored_dtype: str, value: float) -> None:
    """Nor those that are not in the dtype that they would be kept in, or served in."""
    bad = artifact(stored_dtype)
    bad.adapters.bottlenecks["attention"].up_bias[0, 0] = value
    refused = pytest.raises(InvalidArgumentError, match=r"bottleneck\.attention.*up_bias")
    with refused, publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, bad)
    assert list(tmp_path.iterdir()) == []


def test_parts_that_no_server_has_room_for_are_never_written(tmp_path: Path) -> None:
    wide = random_bottleneck(RNG, LAYERS, HIDDEN, 257)
    refused = pytest.raises(InvalidArgumentError, match=r"bottleneck\.output is 257 wide; the widest .* is 256")
    with refused, publishing(tmp_path / "x@1") as staged:
        write_artifact(staged, replace(artifact(), adapters=AdapterSet({"output": wide})))
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_do_not_fit_together() -> None:
    bottleneck = artifact().adapters.bottlenecks["attention"]
    with pytest.raises(InvalidArgumentError, match="down_bias"):
        replace(bottleneck, down_bias=bottleneck.down_bias[:, 1:])
    with pytest.raises(InvalidArgumentError, match="activation"):
        replace(bottleneck, activation="maxout")
    with pytest.raises(InvalidArgumentError, match="dense"):
        replace(artifact().head, dense_bias=None)
    with pytest.raises(InvalidArgumentError, match="labels"):
        replace(artifact(), labels=("a", "b"))
    with pytest.raises(InvalidArgumentError, match="has no labels"):
        replace(artifact(), labels=(), head=Head(torch.randn(0, HIDDEN), torch.randn(0)))
