"""Stored roots: manifest, tokenizer, weights, and what was measured of them in int8."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.int8_file import SMOOTHED, Int8Fidelity, Quantisation, read_fidelity, read_smoothing
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target


class Roots(Target):
    """Files of a root with damage, most of it with checksums that fit."""

    name = "roots"
    cases = 4_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        registry = Registry.open(home)
        name = registry.roots()[0].name
        registry.close()
        original = RootFolder(home.root(name))
        layers, hidden = original.geometry.num_upper_layers, original.geometry.hidden_size
        smoothing = {(layer, product): torch.ones(hidden) for layer in range(layers) for product in SMOOTHED}
        folder = BadFolder(home.root(name), scratch / name)
        Quantisation(original.fingerprint, smoothing, Int8Fidelity(0.99, {"acme/topic@1": 0.98}, 50)).write(folder.path)
        self._folder = BadFolder(folder.path, folder.path)

    def attempt(self, draw: Draw) -> None:
        with self._folder.damaged(draw) as folder, read_errors_are_clear(folder):
            root = RootFolder(folder)
            errors = [error for read in self._readers(root, folder) if (error := _error_of(read)) is not None]
        if errors:
            raise errors[0]

    def _readers(self, root: RootFolder, folder: Path) -> list[object]:
        return [
            root.verify,
            lambda: root.tokenizer().encode(["the cat is near", "x y"], [True, False]),
            root.lower,
            root.aggregation,
            root.upper,
            lambda: read_smoothing(folder, root.fingerprint, root.geometry),
            lambda: read_fidelity(folder, root.fingerprint),
            lambda: read_students(root),
        ]


def _error_of(read: object) -> HplmError | None:
    try:
        read()  # type: ignore[operator]
    except HplmError as error:
        return error
    return None
