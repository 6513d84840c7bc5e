from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from backends.home import Home
from builder.serving.tls import Tls
from certificates import Authority
from served_home import Served, serving


@pytest.fixture(scope="session")
def served(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The tiny home behind a real Triton that computes in fp32; 3 slots for 4 hPLMs, so slots are always reused."""
    with serving(built_home, tmp_path_factory.mktemp("served"), "fp32", lower_instances=2) as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def served_bf16(
    built_home: Home, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Served]:
    """In bf16; by gRPC for clients with certificates only, where openssl can make some."""
    tls = None
    if shutil.which("openssl") is not None:
        authority: Authority = request.getfixturevalue("authority")
        tls = Tls(*authority.sign("server"), authority.certificate)
    with serving(built_home, tmp_path_factory.mktemp("served-bf16"), "bf16", tls=tls) as server:
        yield server


@pytest.fixture(scope="session")
def served_int8(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(built_home, tmp_path_factory.mktemp("served-int8"), "int8") as server:
        yield server
