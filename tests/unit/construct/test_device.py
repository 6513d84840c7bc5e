"""Trainings on a device: the same on all, and one line where the machine lacks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from backends.adapters.bank import read_artifact
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, write_corpus, write_task, write_tiny_bert
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.construct.root.config import config_of
from builder.construct.root.roots import add_root
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import training_device
from builder.requests.hplms import CreateHplm
from builder.settings.domain import Pace, PretrainSettings
from builder.settings.root import DistilSettings
from short_requests import changed, new_domain, new_hplm, new_root, next_hplm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FAR = "cuda:99"


def test_auto_is_a_device_that_is_there() -> None:
    assert training_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert training_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^--device cuda:99: this machine has .*CUDA device.*$"):
        training_device(FAR)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert training_device("auto") == torch.device("cuda")
    assert training_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InvalidArgumentError, match="--device cuda:2: this machine has 2 CUDA devices, counted from 0"):
        training_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "", "CPU", "cuda:1 "])
def test_what_is_no_device_is_refused_with_the_field(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="a device is auto, cpu, cuda or cuda:N"):
        CreateHplm(id="new/one", root="tiny", domain="farm", train=tmp_path, dev=tmp_path, device=name)


def test_a_build_on_a_missing_device_ends_before_it_begins(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    missing = tmp_path / "is-not-read"
    requests = (
        (create_hplm, new_hplm("new/one", "tiny", "farm", missing, missing, device=FAR)),
        (update_hplm, next_hplm("acme/mood", missing, missing, device=FAR)),
        (create_domain, new_domain("barn", "tiny", [missing], device=FAR)),
    )
    for build, request in requests:
        with pytest.raises(InvalidArgumentError, match="--device cuda:99"):
            build(tiny_home, registry, request, ignore)  # type: ignore[operator]


@pytest.mark.parametrize("device", DEVICES)
def test_an_hplm_learns_from_a_teacher_on_a_device(tiny_home: Home, tmp_path: Path, device: str) -> None:
    registry = Registry.open(tiny_home)
    train, dev = write_task(tmp_path / "task", "mood", 40, train=60)
    request = new_hplm("new/one", "tiny", "farm", train, dev, dev, {"epochs": 1}, teacher="dedicated", device=device)
    entry = create_hplm(tiny_home, registry, request, ignore)
    artifact = read_artifact(tiny_home.path / entry.folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert {tensor.device.type for tensor in artifact.adapters.named().values()} == {"cpu"}
    assert entry.metrics["test_accuracy"] == entry.metrics["dev_accuracy"] > 0.4
    update = next_hplm("new/one", train, dev, tune={"epochs": 1}, device=device, force=True)
    assert update_hplm(tiny_home, registry, update, ignore).version == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_root_and_a_domain_learn_on_a_device(tmp_path: Path, device: str) -> None:
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    write_corpus(tmp_path / "garden.txt", 300, seed=1)
    write_tiny_bert(tmp_path / "model", max_tokens=128)
    distil = DistilSettings(steps=2, attention_weight=0.1)
    request = new_root("tiny", str(tmp_path / "model"), 2, [tmp_path / "garden.txt"], distil=distil, device=device)
    add_root(home, registry, request, ignore)
    assert RootFolder(home.root("tiny")).manifest.fidelity["final_cosine"] > 0.1
    pace = PretrainSettings(lower=Pace(steps=2, learning_rate=1e-3), head=Pace(steps=2, learning_rate=1e-3))
    domain = new_domain("farm", "tiny", [tmp_path / "garden.txt"], pace=pace, device=device)
    assert create_domain(home, registry, domain, ignore).metrics["pretrain_steps"] == 2


def test_a_recipe_names_no_device(tmp_path: Path) -> None:
    request = new_root("tiny", "pip:model==1", 2, [tmp_path / "garden.txt"], device="cpu")
    assert "device" not in config_of(request)
    assert config_of(changed(request, device="auto")) == config_of(request)


@pytest.mark.gpu
def test_a_checkpoint_of_a_gpu_is_read_without_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "one", "inputs")
    checkpoint.save({"weights": torch.ones(2, device="cuda")})
    content = checkpoint.load()
    assert content is not None
    assert content["weights"].device.type == "cpu"
