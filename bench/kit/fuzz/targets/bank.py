"""Stored versions of hPLMs, with ladders, as the engine maps them and computes with them beside a good one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.host_bank import HostBank
from backends.adapters.ladder import EarlyStep, Ensemble, Ladder, write_ladder
from backends.engine.exits import Exit
from backends.engine.stack import ReadyHplm, StackSettings, UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target

_GOOD_KEY, _BAD_KEY = 1, 2
_NEAR = 1e-3


class Bank(Target):
    """Manifests, weights and ladders with damage, most of it with checksums that fit."""

    name = "bank"
    cases = 15_000

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
        self._good = self._artifact()
        ladder = Ladder(EarlyStep(1, self._good.head, 1.5, 0.9), 1.2, {"disagreement": 0.01}, Ensemble(0.75, 1.1))
        write_ladder(folder, ladder, self._root)
        self._folder = BadFolder(folder, folder)
        # With two slots for hPLMs, the bad one of each case takes the place of the last.
        self._upper = UpperStack(root, StackSettings(dtype="fp32", num_slots=3))
        generator = torch.Generator().manual_seed(3)
        self._rows = [torch.randn(length, self._geometry.hidden_size, generator=generator) for length in (5, 9)]
        self._alone = self._computed(self._good, _BAD_KEY)[0]

    def _artifact(self) -> HplmArtifact:
        geometry = self._geometry
        bank = HostBank(self._own, lambda _: True)
        return bank.artifact(self._entry, self._root, geometry.hidden_size, geometry.num_upper_layers)

    def attempt(self, draw: Draw) -> None:
        with self._folder.damaged(draw):
            found = self._computed(self._artifact(), _BAD_KEY + 1 + draw.case.number)[0]
            if not torch.allclose(found, self._alone, atol=_NEAR):
                raise HarmedError("a good hPLM answers otherwise beside a bad one")

    def _computed(self, bad: HplmArtifact, key: int) -> list[Tensor]:
        """The logits of a row of the good hPLM, and of one of another."""
        upper = self._upper
        good = upper.ready(_GOOD_KEY, lambda: self._good)
        try:
            other = upper.ready(key, lambda: bad)
            try:
                packed = upper.pack(self._rows, [good, other], isolated=True)
                return upper.run(packed, [good, other], exits=[None, _exit_of(other)])
            finally:
                upper.release(other)
        finally:
            upper.release(good)


def _exit_of(hplm: ReadyHplm) -> Exit | None:
    if hplm.ladder is None:
        return None
    early = hplm.ladder.early
    return Exit(early.after, early.head, early.temperature, early.threshold, None, early.scale)
