"""The wheels: what they carry, what they leave out, and what they say they need."""

from __future__ import annotations

import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from source_tree import PROJECT, build_wheel, copy_source

pytest.importorskip("setuptools", minversion="77")  # older ones know no license expressions

ROOMS = {"backends", "builder", "cli", "loadtest", "model_repository", "workload"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_source(tmp_path_factory.mktemp("build") / "source")


@pytest.fixture(scope="module")
def server(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(source, tmp_path_factory.mktemp("server")))


@pytest.fixture(scope="module")
def client(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(source / "clients", tmp_path_factory.mktemp("client")))


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def top_folders(wheel: zipfile.ZipFile) -> set[str]:
    return {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}


def files_below(folder: Path) -> set[str]:
    """Every file of a room, as a wheel names it."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder.parent)) for path in files if not path.name.endswith(".pyc")}


def licences(wheel: zipfile.ZipFile) -> set[str]:
    return {name.rpartition("/")[2] for name in wheel.namelist() if ".dist-info/licenses/" in name}


def test_the_server_carries_its_rooms_whole_and_neither_benches_nor_demo(server: zipfile.ZipFile) -> None:
    assert top_folders(server) == ROOMS
    expected = set().union(*(files_below(PROJECT / room) for room in ROOMS))
    assert expected - set(server.namelist()) == set()
    assert any(name.endswith("config.pbtxt") for name in expected) and any(name.endswith(".cc") for name in expected)


def test_the_server_carries_its_licence_and_notice(server: zipfile.ZipFile) -> None:
    assert licences(server) == {"LICENSE", "NOTICE"}
    assert metadata(server)["License-Expression"] == "Apache-2.0"


def test_the_server_pins_nothing_and_does_not_ask_for_a_triton_server(server: zipfile.ZipFile) -> None:
    requirements = metadata(server).get_all("Requires-Dist") or []
    assert len(requirements) > 20 and not [line for line in requirements if "==" in line.partition(";")[0]]
    assert not any("pytriton" in line for line in requirements)


def test_the_client_stands_alone(client: zipfile.ZipFile) -> None:
    assert top_folders(client) == {"hplm_client"}
    assert files_below(PROJECT / "clients" / "hplm_client") - set(client.namelist()) == set()
    assert "hplm_client/py.typed" in client.namelist() and licences(client) == {"LICENSE"}
    requirements = metadata(client).get_all("Requires-Dist") or []
    assert [line.partition(">")[0] for line in requirements] == ["tritonclient[grpc,http]", "numpy"]
    assert metadata(client)["Requires-Python"] == ">=3.9"
