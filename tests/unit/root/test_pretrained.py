"""Conversion: our layers are the pretrained model's layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from backends.errors import CorruptFileError, FormatVersionError, InvalidArgumentError
from backends.home import Home
from backends.root.encoder import padded_attention
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from builder.construct.root.conversion import convert
from builder.construct.root.pretrained import load_pretrained


def test_upper_layers_equal_the_models(tiny_bert: Path) -> None:
    parts = convert(tiny_bert, num_lower_layers=2, max_tokens=32)
    ids = torch.randint(5, parts.geometry.vocab_size, (4, 12))
    mask = torch.arange(12) < torch.tensor([12, 3, 1, 7])[:, None]
    states = load_pretrained(tiny_bert)(ids, mask.long(), output_hidden_states=True).hidden_states
    ours = parts.upper(states[2], padded_attention(parts.geometry.num_heads, mask))
    torch.testing.assert_close(ours[mask], states[4][mask], rtol=1e-5, atol=1e-5)


def test_fragment_layers_equal_the_model_on_three_tokens(tiny_bert: Path) -> None:
    parts = convert(tiny_bert, num_lower_layers=2, max_tokens=32)
    ids = torch.randint(5, parts.geometry.vocab_size, (16, 3))
    states = load_pretrained(tiny_bert)(ids, output_hidden_states=True).hidden_states
    gated = parts.lower(ids)  # the gate starts at sigmoid(0)
    torch.testing.assert_close(gated, 0.5 * states[2], rtol=1e-5, atol=1e-5)


def test_empty_slots_are_as_if_they_were_not_there(tiny_bert: Path) -> None:
    lower = convert(tiny_bert, num_lower_layers=2, max_tokens=32).lower
    ids = torch.randint(5, 100, (8, 3))
    ids[:, 0] = 0
    whole, without = lower(ids), lower(ids[:, 1:], first_slot=1)
    assert whole[:, 0].abs().max() == 0
    torch.testing.assert_close(whole[:, 1:], without, rtol=1e-5, atol=1e-5)


def test_an_all_empty_fragment_is_zero(tiny_bert: Path) -> None:
    lower = convert(tiny_bert, num_lower_layers=2, max_tokens=32).lower
    assert lower(torch.zeros(1, 3, dtype=torch.int64)).abs().max() == 0


@pytest.mark.parametrize(
    ("lower", "tokens", "message"), [(4, 32, "leaves no upper layer"), (0, 32, "leaves no upper"), (2, 65, "exceeds")]
)
def test_impossible_splits_are_refused(tiny_bert: Path, lower: int, tokens: int, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        convert(tiny_bert, lower, tokens)


def test_other_model_types_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mpnet"}))
    with pytest.raises(InvalidArgumentError, match="holds a mpnet model; roots are made of bert, electra"):
        convert(folder, 2, 32)


def test_a_root_file_with_one_flipped_bit_is_refused(tiny_home: Home) -> None:
    path = tiny_home.root("tiny") / "upper.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        RootFolder(tiny_home.root("tiny")).upper()


def test_a_root_of_a_newer_format_is_refused(tiny_home: Home) -> None:
    manifest = tiny_home.root("tiny") / "manifest.json"
    write_json(manifest, {**read_json(manifest), "format_version": 99})
    with pytest.raises(FormatVersionError, match="99"):
        RootFolder(tiny_home.root("tiny"))
