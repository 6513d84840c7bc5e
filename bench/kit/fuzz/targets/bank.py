"""Stored versions of hPLMs, with ladders, as the engine maps them."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.adapters.host_bank import HostBank
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target


class Bank(Target):
    """Manifests, weights and ladders with damage, most of it with checksums that fit."""

    name = "bank"
    cases = 20_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        registry = Registry.open(home)
        self._entry = registry.hplms()[0]
        registry.close()
        root = RootFolder(home.root(self._entry.domain.root))
        self._root, self._geometry = root.fingerprint, root.geometry
        self._own = Home(scratch / "home")
        folder = self._own.path / self._entry.folder
        folder.parent.mkdir(parents=True)
        self._folder = BadFolder(home.path / self._entry.folder, folder)
        self._with_ladder()

    def _with_ladder(self) -> None:
        bank = HostBank(self._own, lambda _: True)
        artifact = bank.artifact(self._entry, self._root, self._geometry.hidden_size, self._geometry.num_upper_layers)
        ladder = Ladder(EarlyStep(1, artifact.head, 1.5, 0.9), 1.2, {"disagreement": 0.01})
        write_ladder(self._folder.path, ladder, self._root)
        self._folder = BadFolder(self._folder.path, self._folder.path)

    def attempt(self, draw: Draw) -> None:
        geometry = self._geometry
        with self._folder.damaged(draw):
            bank = HostBank(self._own, lambda _: True)
            artifact = bank.artifact(self._entry, self._root, geometry.hidden_size, geometry.num_upper_layers)
            artifact.head.logits(torch.zeros(1, artifact.head.hidden_size, dtype=artifact.head.weight.dtype))
