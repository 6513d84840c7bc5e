"""The tiny home with one more domain, which is built once for all tests of builds."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import (
    ignore,
    write_corpus,
)
from builder.construct.domain.domains import create_domain
from garden_domain import PRETRAIN, WORDS
from shared_builds import built_once
from short_requests import new_domain


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random texts, and more of words that follow each other as in the alphabet, to learn from."""
    return built_once(tmp_path_factory, "garden_corpus", lambda folder: _write(folder / "garden.txt")) / "garden.txt"


def _write(path: Path) -> None:
    write_corpus(path, 150, seed=31)
    chance = random.Random(31)
    with path.open("a") as file:
        for _ in range(300):
            start = chance.randrange(len(WORDS))
            file.write(" ".join((WORDS * 2)[start : start + chance.randint(6, 16)]) + "\n")


@pytest.fixture(scope="session")
def pretrained(built_home: Home, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The tiny home with the further pretrained domain "garden"; to be read only."""

    def build(folder: Path) -> None:
        home = Home(Path(shutil.copytree(built_home.path, folder / "home")))
        registry = Registry.open(home)
        create_domain(home, registry, new_domain("garden", "tiny", (corpus,), "farm", PRETRAIN, theta=0.5), ignore)
        registry.close()

    # Copied for each worker, as `built_home` is.
    built = built_once(tmp_path_factory, "garden", build)
    return Home(Path(shutil.copytree(built, tmp_path_factory.mktemp("pretrained") / "built")) / "home")


@pytest.fixture
def home(pretrained: Home, tmp_path: Path) -> Home:
    """A copy of it for one test to change."""
    return Home(Path(shutil.copytree(pretrained.path, tmp_path / "home")))
