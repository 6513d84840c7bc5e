"""Adapters that AdapterHub's library saved give its own logits; see `tests/data/adapterhub/make_golden.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from importer import Importer
from safetensors.torch import load_file, save_file

from backends.errors import InvalidArgumentError
from backends.registry.entries import HplmEntry
from builder.importing.folder import read_folder

GOLDEN = Path(__file__).parents[2] / "data" / "adapterhub"
SERVED = ("seq_bn", "double_seq_bn", "pfeiffer_scaled", "channel_bin")


@pytest.fixture
def importer(importer_of: Callable[[Path], Importer]) -> Importer:
    return importer_of(GOLDEN / "base")


def take(importer: Importer, folder: Path, name: str) -> HplmEntry:
    return importer.take(folder, f"acme/{name}", labels=None, base=GOLDEN / "base")


def test_all_kinds_in_one_batch_give_the_librarys_logits(importer: Importer) -> None:
    golden = load_file(GOLDEN / "golden.safetensors")
    asked, expected = [], []
    for name in SERVED:
        entry = take(importer, GOLDEN / name, name)
        assert (entry.task, entry.labels) == ("classification", ("red", "green", "blue"))
        for row, length, logits in zip(golden["hidden"], golden["lengths"].tolist(), golden[name], strict=True):
            asked.append((entry, row[:length]))
            expected.append(logits)
    for (entry, _), got, logits in zip(asked, importer.logits(asked), expected, strict=True):
        assert (got - logits).abs().max() <= 1e-3, entry.id


def test_the_parts_are_where_the_kind_says(importer: Importer) -> None:
    expected = {"seq_bn": {"output": True}, "double_seq_bn": {"attention": False, "output": False}}
    for name, sites in expected.items():
        entry = take(importer, GOLDEN / name, name)
        artifact = importer.artifact(entry)
        assert {site: part.norm_first for site, part in artifact.adapters.bottlenecks.items()} == sites
        assert artifact.stored_dtype == "fp32"
    assert importer.artifact(entry).origin["format"] == "adapterhub"


def test_layers_that_are_a_table_here_are_refused(importer: Importer) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"adapts layer 1 \(output\), but the layers 0 to 1.*leave_out.*--retune"
    ):
        take(importer, GOLDEN / "lower_layers", "x")


def copied(tmp_path: Path, name: str = "double_seq_bn") -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inv_adapter": "nice"}, "invertible"),
        ({"use_gating": True}, "gated"),
        ({"phm_layer": True}, "compacter"),
        ({"ln_before": True}, "before the adapter"),
        ({"ln_after": True}, "after the adapter"),
        ({"is_parallel": True}, "par_bn"),
        ({"original_ln_after": False}, "original_ln_after"),
        ({"original_ln_before": True, "residual_before_ln": "post_add"}, "post_add"),
        ({"architecture": "prefix_tuning"}, "prefix_tuning"),
        ({"non_linearity": "leakyrelu"}, "leakyrelu"),
        ({"brand_new": 3}, "unknown setting 'brand_new'"),
        ({"scaling": None}, "scaling is None, neither a number nor 'learned'"),
        ({"scaling": [1]}, r"scaling is \[1\], neither a number nor 'learned'"),
    ],
)
def test_settings_that_change_what_is_computed(
    importer: Importer, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = copied(tmp_path) / "adapter_config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "config": {**saved["config"], **changes}}))
    with pytest.raises(InvalidArgumentError, match=reason):
        take(importer, path.parent, "x")
    assert importer.registry.hplms() == []


def test_the_old_librarys_gelu_was_an_approximation(tmp_path: Path) -> None:
    folder = copied(tmp_path, "channel_bin")
    assert read_folder(folder).modules[0].settings["activation"] == "gelu"
    path = folder / "adapter_config.json"
    saved = json.loads(path.read_text())
    del saved["version"]
    path.write_text(json.dumps(saved))
    assert read_folder(folder).modules[0].settings["activation"] == "gelu_new"


@pytest.mark.parametrize("file", ["adapter.safetensors", "model_head.safetensors"])
def test_unknown_and_missing_weights_are_named(tmp_path: Path, file: str) -> None:
    path = copied(tmp_path) / file
    tensors = load_file(path)
    save_file({**tensors, "bert.invertible_adapters.double_seq_bn.F.0.weight": torch.zeros(2)}, path)
    with pytest.raises(InvalidArgumentError, match=r"unknown weights 'bert\.invertible_adapters"):
        read_folder(path.parent)
    first = sorted(tensors)[-1]
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, path)
    with pytest.raises(InvalidArgumentError, match=r"lacks up_weight|has no weight"):
        read_folder(path.parent)


def test_weights_of_no_dimension_are_of_the_wrong_shape(importer: Importer, tmp_path: Path) -> None:
    path = copied(tmp_path) / "adapter.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if ".3." in name]:
        save_file({**tensors, name: torch.tensor(1.0)}, path)
        with pytest.raises(InvalidArgumentError, match=r"of shape \(1,"):
            take(importer, path.parent, "x")


def test_folders_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match=r"no adapter_config\.json"):
        read_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="neither of PEFT nor of AdapterHub"):
        read_folder(tmp_path)
