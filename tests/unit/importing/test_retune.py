"""Imports that are tuned on for a root, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_peft import make_peft
from typer.testing import CliRunner, Result

from backends.adapters.bank import read_artifact
from backends.errors import ConflictError, FingerprintMismatchError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import tiny_root, write_task, write_values
from builder.construct.hplm.hplms import building_hplm, publish_artifact, publish_linked
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.target import DECLARED, Target
from cli.app import app

TARGET = Target.of(max_drop=2, certainty=0.95, late="reject")


def run(home: Home, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", *arguments, "--home", str(home.path)], catch_exceptions=False)


def model_of(home: Home) -> Path:
    return Path(RootFolder(home.root("tiny")).manifest.origin["source"])


def test_an_adapter_of_all_layers_is_tuned_on_in_the_upper_ones(tiny_home: Home, tmp_path: Path) -> None:
    torch.manual_seed(1)
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS", layers_to_transform=None, r=8)
    train, dev = write_task(tmp_path, "topic", seed=70)
    arguments = ["acme/lora", "--from", str(tmp_path / "x"), "--labels", "tools,animals,weather", "--domain", "farm"]
    tuning = ["--retune", "--train", str(train), "--dev", str(dev), "--epochs", "12", "--learning-rate", "5e-3"]
    result = run(tiny_home, *arguments, *tuning, "--json")
    assert result.exit_code == 0, result.output
    entry = Registry.open(tiny_home).hplm("acme/lora")
    assert entry.labels == ("animals", "tools", "weather")
    assert entry.metrics["dev_accuracy"] >= entry.metrics["majority_share"] + 0.25
    assert json.loads(result.stdout)["imported"] == "peft lora"
    artifact = read_artifact(tiny_home.path / entry.folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert sorted(artifact.adapters.parts()) == ["lora.query", "lora.value"]
    assert artifact.head.dense_weight is not None


def test_an_adapter_without_a_head_gets_one(tiny_home: Home, tmp_path: Path) -> None:
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS", layers_to_transform=[0])
    train, dev = write_task(tmp_path, "mood", seed=71, train=40)
    tuning = ["--retune", "--train", str(train), "--dev", str(dev), "--epochs", "1"]
    result = run(tiny_home, "acme/new", "--from", str(tmp_path / "x"), *tuning)
    assert result.exit_code == 0, result.output
    entry = Registry.open(tiny_home).hplm("acme/new")
    assert (entry.labels, entry.domain.name) == (("glad", "sad"), "general")


def test_a_regression_of_large_numbers_begins_at_their_mean(tiny_home: Home, tmp_path: Path) -> None:
    """And nobody knows what the adapter was trained on before, which selections say."""
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS", layers_to_transform=[0])
    train, dev = write_values(tmp_path, seed=72, train=40)
    for path in (train, dev):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "label": 2000 + row["label"] / 100}) + "\n" for row in rows))
    tuning = ["--retune", "--task", "regression", "--train", str(train), "--dev", str(dev), "--epochs", "1"]
    result = run(tiny_home, "acme/year", "--from", str(tmp_path / "x"), *tuning)
    assert result.exit_code == 0, result.output
    folder = tiny_home.path / Registry.open(tiny_home).hplm("acme/year").folder
    artifact = read_artifact(folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert abs(float(artifact.head.bias) - 2000) < 20
    assert not TrainedTexts.read(folder).are_all


def test_an_existing_hplm_is_replaced_only_when_that_is_asked_for(tiny_home: Home, tmp_path: Path) -> None:
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS")
    (tmp_path / "labels.txt").write_text("tools\nanimals\nweather\n")
    arguments = ["acme/topic", "--from", str(tmp_path / "x"), "--labels", f"@{tmp_path / 'labels.txt'}"]
    with pytest.raises(ConflictError, match="--replace"):
        run(tiny_home, *arguments)
    assert run(tiny_home, *arguments, "--replace").exit_code == 0
    registry = Registry.open(tiny_home)
    entry = registry.hplm("acme/topic")
    assert (entry.version, entry.domain.name, entry.labels) == (2, "farm", ("tools", "animals", "weather"))
    figures = {"students": {"set": "a", "best": 1, "depth": 0.5}, "levels": ["early", "full"], DECLARED: TARGET.noted}
    with building_hplm(tiny_home, entry.id):
        publish_linked(tiny_home, registry, entry, lambda folder: None, figures)
    result = run(tiny_home, *arguments, "--replace")
    assert "version 4 has no students; the one before had: 'hplm students add acme/topic" in result.stderr
    assert "version 4 has no ladder; the one before had: 'hplm select acme/topic" in result.stderr
    assert Target.of_version(registry.hplm("acme/topic").metrics) == TARGET, "the tenant can bear what it could before"


def test_an_import_may_name_a_version_of_its_domain_and_stays_on_it(tiny_home: Home, tmp_path: Path) -> None:
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS")
    registry = Registry.open(tiny_home)
    old = registry.domain("tiny", "farm")
    registry.publish_domain("tiny", "farm", old.folders[0], registry.domain("tiny", "general"), {})
    arguments = ["--from", str(tmp_path / "x"), "--labels", "a,b,c"]
    assert run(tiny_home, "acme/held", *arguments, "--domain", "farm@1").exit_code == 0
    assert run(tiny_home, "acme/free", *arguments, "--domain", "farm").exit_code == 0
    held, free = registry.hplm("acme/held"), registry.hplm("acme/free")
    assert (held.domain.label, held.pinned) == ("farm@1", held.domain)
    assert (free.domain.label, free.pinned) == ("farm@2", None)


def test_an_import_of_another_root_replaces_nothing(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    tiny_root(tiny_home, registry, tmp_path, "other", seed=6)
    make_peft(model_of(tiny_home), tmp_path / "x", "SEQ_CLS")
    arguments = ["acme/topic", "--from", str(tmp_path / "x"), "--labels", "a,b,c", "--replace", "--same-base"]
    with pytest.raises(InvalidArgumentError, match="is of root 'tiny', so an import into root 'other'"):
        run(tiny_home, *arguments, "--root", "other")
    live = registry.hplm("acme/topic")
    artifact = read_artifact(tiny_home.path / live.folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    with pytest.raises(FingerprintMismatchError, match="domain general@1 is of root 'other'"):
        publish_artifact(tiny_home, registry, artifact, registry.domain("other", "general"), {})
    assert registry.hplm("acme/topic") == live


@pytest.mark.parametrize("content", [None, b"", b"a\n\xff\xfe\n", b"a\x00\nb\nc\n"])
def test_a_file_of_labels_that_is_none(tiny_home: Home, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "labels.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"--labels: .*labels\.txt"):
        run(tiny_home, "new/one", "--from", str(tmp_path), "--labels", f"@{path}")
