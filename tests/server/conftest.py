from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends.home import Home
from served_home import Served, serving


@pytest.fixture(scope="session")
def served(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The tiny home behind a real Triton that computes in fp32; 3 slots for 4 hPLMs, so slots are always reused."""
    with serving(built_home, tmp_path_factory.mktemp("served"), "fp32", lower_instances=2) as server:
        yield server


@pytest.fixture(scope="session")
def served_bf16(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(built_home, tmp_path_factory.mktemp("served-bf16"), "bf16") as server:
        yield server


@pytest.fixture(scope="session")
def served_int8(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(built_home, tmp_path_factory.mktemp("served-int8"), "int8") as server:
        yield server
