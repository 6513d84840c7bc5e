"""What `hplm verify` reads of a domain with lower layers of its own; the rest is tested as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from backends.adapters.ladder import LADDER_FILES
from backends.engine.stack import StackSettings
from backends.home import Home
from backends.lower.encoder import MANIFEST_NAME, WEIGHTS_NAME
from backends.registry.registry import Registry
from backends.root.int8_file import SMOOTHED, Int8Fidelity, Quantisation
from backends.root.store import RootFolder
from backends.root.student_set import students_folder
from backends.storage import read_json, staging_folder, write_json
from bench.kit.tiny_home import ignore, sample_texts, write_corpus
from builder.construct.domain.domains import create_domain
from builder.levels.material import LabelledFiles
from builder.levels.selecting import Selecting, select_ladder
from builder.levels.target import Target
from builder.lifecycle.verification import verify_home
from builder.locks import exclusive
from builder.settings.domain import Pace, PretrainSettings
from short_requests import new_domain


@pytest.mark.parametrize("lost", [MANIFEST_NAME, WEIGHTS_NAME])
def test_layers_of_its_own_must_be_there(tiny_home: Home, tmp_path: Path, lost: str) -> None:
    registry, pace = Registry.open(tiny_home), Pace(steps=1, learning_rate=1e-3, tokens_per_batch=256)
    corpus = write_corpus(tmp_path / "garden.txt", 150, seed=31)
    request = new_domain("garden", "tiny", (corpus,), pace=PretrainSettings(lower=pace, head=pace))
    entry = create_domain(tiny_home, registry, request, ignore)
    assert verify_home(tiny_home, registry, ignore).damaged == ()
    (tiny_home.path / entry.folders[0] / lost).unlink()
    damaged = verify_home(tiny_home, registry, ignore).damaged
    assert [damage.folder for damage in damaged] == [entry.folders[0]]
    assert lost in damaged[0].complaint


def test_what_interrupted_builds_left_is_named(tiny_home: Home) -> None:
    registry, root = Registry.open(tiny_home), tiny_home.root("tiny")
    staging_folder(students_folder(root)).mkdir()
    with exclusive(tiny_home, root, "a build of students"):
        assert verify_home(tiny_home, registry, ignore).unfinished == ()
    found = verify_home(tiny_home, registry, ignore)
    assert (found.damaged, found.unfinished) == ((), ("roots/tiny/.students.building",))


@pytest.mark.parametrize("damage", [{"smoothing": {}}, {"fidelity": {"cosine": "high"}}, {"root_fingerprint": "other"}])
def test_what_was_measured_in_int8_is_read(tiny_home: Home, damage: dict[str, object]) -> None:
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    layers, channels = range(root.geometry.num_upper_layers), torch.ones(root.geometry.hidden_size)
    smoothing = {(layer, product): channels for layer in layers for product in SMOOTHED}
    Quantisation(root.fingerprint, smoothing, Int8Fidelity(0.999, {}, 96)).write(root.path)
    assert verify_home(tiny_home, registry, ignore).damaged == ()
    path = root.path / "int8.json"
    write_json(path, read_json(path) | damage)
    (damaged,) = verify_home(tiny_home, registry, ignore).damaged
    assert damaged.folder == "roots/tiny" and "int8.json" in damaged.complaint


@pytest.mark.parametrize("file", LADDER_FILES)
@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_damaged_ladder_is_told(tiny_home: Home, tmp_path: Path, file: str, how: str) -> None:
    registry = Registry.open(tiny_home)
    rows = [{"text": text.text, "label": text.topic} for text in sample_texts(560, seed=910)]
    files = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    for path, part in zip(files, (rows[:160], rows[160:]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    selecting = Selecting("acme/topic", LabelledFiles(*files), Target.of(max_drop=20))
    entry = select_ladder(tiny_home, registry, selecting, StackSettings(dtype="fp32"), ignore).entry
    assert entry.levels == ("early", "full") and verify_home(tiny_home, registry, ignore).damaged == ()
    path = tiny_home.path / entry.folder / file
    path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[:-9])
    assert [damage.folder for damage in verify_home(tiny_home, registry, ignore).damaged] == [entry.folder]
