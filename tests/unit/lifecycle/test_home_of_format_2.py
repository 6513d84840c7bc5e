"""A home that commit d0dbce8 wrote: it opens, is whole, and is served with the answers that it was served with then.

`home.tar.xz` holds one root, three domains (one with lower layers of its own), overlays of learned fragments, and hPLMs
of two tasks, one of them deleted; `served.json` what that commit answered.
"""

from __future__ import annotations

import json
import queue
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.engine.service import UpperService
from backends.engine.stack import StackSettings
from backends.home import Home
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from bench.kit.tiny_home import ignore
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.verification import verify_home

DATA = Path(__file__).parents[2] / "data" / "home_of_format_2"
SERVED: list[dict[str, Any]] = json.loads((DATA / "served.json").read_text(encoding="utf-8"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    with tarfile.open(DATA / "home.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Home(tmp_path / "home")


def test_its_registry_says_what_it_said(home: Home) -> None:
    registry = Registry.open(home)
    assert [(root.name, root.fingerprint) for root in registry.roots()] == [("mini", "84e75d2c7d8dfc0a")]
    assert {domain.label: domain.folders for domain in registry.domains()} == {
        "general@1": ("plots/mini/general@1",),
        "farm@1": ("plots/mini/farm@1", "plots/mini/general@1"),
        "shop@1": ("plots/mini/shop@1", "plots/mini/general@1"),
    }
    hplms = [(hplm.id, hplm.version, hplm.task, hplm.labels, hplm.domain.label) for hplm in registry.hplms()]
    assert hplms == [
        ("acme/mood", 1, "classification", ("glad", "sad"), "farm@1"),
        ("acme/names", 1, "ner", ("O", "B-animal", "I-animal"), "shop@1"),
    ]
    assert registry.next_hplm_version("globex/gone") == 2


def test_its_files_are_whole(home: Home) -> None:
    registry = Registry.open(home)
    verified = verify_home(home, registry, ignore)
    assert (verified.num_folders, verified.damaged) == (6, ())
    left = {removal.folder for removal in collect_garbage(home, registry, GarbageSettings(0, 0, 0)).removed}
    assert left == {"bank/mini/globex--gone@1"}


def test_it_is_served_with_the_same_answers(home: Home) -> None:
    snapshot = RegistrySnapshot(Registry.open(home))
    lower = LowerService(home, snapshot, FillingSettings(Missing.FALLBACK))
    upper = UpperService(home, snapshot, StackSettings(dtype="fp32", num_slots=4), Capacity(max_adapters=3))
    try:
        for expected in SERVED:
            hidden = encoded(lower, expected)
            total = np.abs(hidden.hidden.astype(np.float32)).sum()
            assert total == pytest.approx(expected["hidden_sum"], rel=5e-3)
            assert_same(answered(upper, hidden), expected["answer"])
    finally:
        upper.close()
        lower.close()
        snapshot.close()


def test_what_its_servers_learned_is_used(home: Home) -> None:
    snapshot = RegistrySnapshot(Registry.open(home))
    lower = LowerService(home, snapshot, FillingSettings(Missing.LEARN))
    try:
        for expected in SERVED:
            encoded(lower, expected)
        assert lower.domains.hits()["mini", "farm@1/overlay"] > 0
    finally:
        lower.close()
        snapshot.close()


def encoded(lower: LowerService, row: dict[str, Any]) -> HiddenRequest:
    (result,) = lower.encode([TextRequest([row["hplm"].encode()], [row["text"].encode()], "")])
    assert isinstance(result, HiddenRequest), result
    return result


def answered(upper: UpperService, hidden: HiddenRequest) -> dict[str, Any]:
    answers: queue.Queue[Any] = queue.Queue()
    upper.submit(hidden.hidden, hidden.tickets, hidden.words, answers.put)
    (answer,) = answers.get(timeout=30)
    content: dict[str, Any] = json.loads(answer)
    return content


def assert_same(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """Whatever a later release adds: what was answered then is still answered."""
    for name, value in expected.items():
        if name in ("score", "scores"):
            assert answer[name] == pytest.approx(value, abs=1e-2)
        elif name == "entities":
            assert [without_score(entity) for entity in answer[name]] == [without_score(entity) for entity in value]
        else:
            assert answer[name] == value


def without_score(entity: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entity.items() if name != "score"}
