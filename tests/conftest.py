from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backends.home import Home
from tiny_home import build_tiny_home, write_tiny_bert

# The tests' models are so small that a second thread only waits.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Also for the next test: engines that compute in a test's own thread tell PyTorch how many it may take there."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def built_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The tiny home that every test may read and none may change."""
    return build_tiny_home(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_home(built_home: Home, tmp_path: Path) -> Home:
    """A copy of the tiny home for one test to change."""
    return Home(Path(shutil.copytree(built_home.path, tmp_path / "home")))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
