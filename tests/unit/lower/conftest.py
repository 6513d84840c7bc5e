from __future__ import annotations

import pytest
import torch

from backends.home import Home
from backends.lower import upkeep
from backends.lower.encoder import write_layers
from backends.registry.registry import Registry
from backends.root.store import RootFolder


@pytest.fixture
def home(tiny_home: Home) -> Home:
    """The tiny home, whose domain street has lower layers of its own."""
    root = RootFolder(tiny_home.root("tiny"))
    encoder = root.lower()
    for parameter in encoder.layers.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    domain = Registry.open(tiny_home).domain("tiny", "street")
    write_layers(tiny_home.path / domain.folders[0], encoder, root.fingerprint, {})
    return tiny_home


@pytest.fixture
def quick_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SYNC_EVERY_S", 0.05)
    monkeypatch.setattr(upkeep, "RETIRE_EVERY_S", 0.1)
