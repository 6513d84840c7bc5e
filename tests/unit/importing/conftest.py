from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from importer import Importer, round_model

from backends.home import Home
from bench.kit.tiny_home import write_tiny_bert


@pytest.fixture(scope="session")
def rounded_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounded")
    return round_model(write_tiny_bert(folder / "exact"), folder / "tiny-bert")


@pytest.fixture
def importer_of(tmp_path: Path) -> Callable[[Path], Importer]:
    return lambda model: Importer(Home(tmp_path / "home"), model)


@pytest.fixture(scope="session")
def strict_importer(tmp_path_factory: pytest.TempPathFactory, rounded_bert: Path) -> Importer:
    """For imports that must all be refused, so that nothing ever changes in it."""
    return Importer(Home(tmp_path_factory.mktemp("strict") / "home"), rounded_bert)
