"""Files of ladders: what is written is read, and a damaged one costs early answers only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.ladder import read_ladder
from backends.errors import FingerprintMismatchError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.wire import AUTO
from ladder_cases import CERTIFIED, answers, ask, damaged, ladder_of
from served_engine import running


@pytest.fixture
def topic(tiny_home: Home) -> HplmEntry:
    return Registry.open(tiny_home).hplm("acme/topic")


@pytest.mark.parametrize("said", [None, 3.0])
def test_a_ladder_is_read_as_it_was_written(tiny_home: Home, topic: HplmEntry, said: float | None) -> None:
    ladder, folder = ladder_of(tiny_home, topic, 0.75, said), tiny_home.path / topic.folder
    fingerprint = RootFolder(tiny_home.root("tiny")).fingerprint
    read = read_ladder(folder, fingerprint)
    assert read is not None
    assert replace(read.early, head=ladder.early.head) == ladder.early and read.certified == ladder.certified
    torch.testing.assert_close(read.early.head.weight, ladder.early.head.weight.half())
    assert read_ladder(folder.parent, fingerprint) is None
    with pytest.raises(FingerprintMismatchError):
        read_ladder(folder, "another")


@pytest.mark.parametrize(
    "how",
    ["newer", "another root", "heads", "endless", "missing", "text", "after", "temperature", "nan", "said", *CERTIFIED],
)
def test_a_damaged_ladder_costs_early_answers_only(
    tiny_home: Home, topic: HplmEntry, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    ladder_of(tiny_home, topic, threshold=0.0)
    root = RootFolder(tiny_home.root("tiny"))
    error = damaged(tiny_home.path / topic.folder, how)

    def read() -> HplmArtifact:
        ladder = read_ladder(tiny_home.path / topic.folder, root.fingerprint)
        artifact = read_artifact(tiny_home.path / topic.folder, root.fingerprint)
        return artifact.with_ladder(ladder, root.geometry.num_upper_layers)

    with pytest.raises(error):
        read()
    with running(tiny_home) as service:
        assert all("level" not in answer for answer in answers(ask(service, topic, AUTO)))
    assert "acme/topic is answered in full" in caplog.text
