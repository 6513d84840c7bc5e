"""Weights of other libraries: only plain tensors, whose numbers all lie in the file, are taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.errors import CorruptFileError
from builder.importing.files import read_weights

NAMES = ("adapter_model.bin",)


def weights(folder: Path, content: object) -> Path:
    torch.save(content, folder / NAMES[0])
    return folder


def test_plain_tensors_are_taken_in_fp32(tmp_path: Path) -> None:
    found = read_weights(weights(tmp_path, {"a": torch.ones(2, 3).half(), "b": torch.tensor(2.0)}), NAMES)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()} == {
        "a": (torch.float32, (2, 3)),
        "b": (torch.float32, (1,)),
    }


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(1).expand(1 << 26),
        torch.ones(4).to_sparse(),
        torch.ones(2, dtype=torch.complex64),
        torch.empty(1 << 40, device="meta"),
    ],
    ids=["a view of one number", "sparse", "complex", "without numbers"],
)
def test_a_tensor_that_is_larger_than_its_file_or_of_another_kind(tensor: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError):
        read_weights(weights(tmp_path, {"a": tensor}), NAMES)


@pytest.mark.parametrize("content", [[torch.ones(1)], {1: torch.ones(1)}, {"a": 1}, "text"])
def test_content_that_is_no_mapping_of_tensors(content: object, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError):
        read_weights(weights(tmp_path, content), NAMES)
