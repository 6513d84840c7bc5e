"""PLOT tables: header, values, keys and index, as far as a lookup of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.home import Home
from backends.lower.encoder import domain_encoder, write_layers
from backends.plot.chain import PlotChain
from backends.plot.table import Table
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target


class Tables(Target):
    """A domain's table with damage, asked in a chain with its root's."""

    name = "tables"
    cases = 10_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        registry = Registry.open(home)
        domain = next(entry.domain for entry in registry.hplms())
        registry.close()
        own, *parents = domain.folders
        root = RootFolder(home.root(domain.root))
        self._fingerprint, self._vocabulary = root.fingerprint, root.geometry.vocab_size
        self._parents = [home.path / folder for folder in parents]
        table = scratch / "table"
        BadFolder(home.path / own, table)
        self._root, self._encoder = root, root.lower()
        write_layers(table, self._encoder, root.fingerprint, {"steps": 1})
        self._folder = BadFolder(table, table)

    def attempt(self, draw: Draw) -> None:
        ids = np.array([draw.randrange(self._vocabulary) for _ in range(12)], np.int64)
        with self._folder.damaged(draw) as folder, read_errors_are_clear(folder):
            tables = [Table.open(path, self._fingerprint) for path in (folder, *self._parents)]
            try:
                PlotChain(tables).lookup(ids, np.array([0, 5, len(ids)], np.int64))
                if draw.happens(0.1):
                    tables[0].verify()
                if draw.happens(0.2):
                    domain_encoder(self._root, [folder], self._encoder)
            finally:
                for table in tables:
                    table.close()
