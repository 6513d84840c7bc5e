"""What `hplm verify` reads of a domain with lower layers of its own; the rest is tested as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.home import Home
from backends.lower.encoder import MANIFEST_NAME, WEIGHTS_NAME
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, write_corpus
from builder.construct.domain.domains import create_domain
from builder.lifecycle.verification import verify_home
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
