"""The run folder: what it links, and when it counts as left behind."""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from builder.serving.errors import TritonMissingError
from builder.serving.installation import (
    PYTHON_VERSION,
    STUB_NAME,
    Installation,
    find_installation,
    find_libpython,
    stub_python_version,
)
from builder.serving.run_folder import SHARED_MEMORY, RunFolder, sweep_stale
from small_disk import run_on_small_disk


@pytest.fixture(autouse=True)
def private_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_installation_fits_the_running_python():
    installation = find_installation()
    assert os.access(installation.binary, os.X_OK)
    assert stub_python_version(installation.stub) == PYTHON_VERSION
    assert find_libpython().name == f"libpython{PYTHON_VERSION}.so.1.0"
    assert "pytriton" not in sys.modules


def test_a_server_that_dies_of_numpy_2_is_not_taken_with_it(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.4.6")
    with pytest.raises(TritonMissingError, match=r"dies of arrays of numpy 2\.4\.6; pip install 'numpy<2'"):
        find_installation()


def test_a_server_that_knows_numpy_2_is_taken_with_it(tmp_path, monkeypatch):
    content = f"\0libpython{PYTHON_VERSION}.so.1.0\0numpy._core\0".encode()
    monkeypatch.setenv("PATH", str(installed_on_path(tmp_path / "opt", content).parent), prepend=":")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.4.6")
    assert find_installation().binary.is_relative_to(tmp_path)


def installed_on_path(root: Path, stub_content: bytes) -> Path:
    """The layout of NVIDIA's container."""
    (root / "bin").mkdir(parents=True)
    binary = root / "bin" / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    (root / "backends" / "python").mkdir(parents=True)
    (root / "backends" / "python" / STUB_NAME).write_bytes(stub_content)
    (root / "TRITON_VERSION").write_text("2.51.0\n")
    return binary


def test_a_tritonserver_on_the_path_comes_first(tmp_path, monkeypatch):
    binary = installed_on_path(tmp_path / "opt", f"\0libpython{PYTHON_VERSION}.so.1.0\0".encode())
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    found = find_installation()
    assert (found.binary, found.version) == (binary, "2.51.0")
    folder = RunFolder.create()
    folder.lay_out(found)
    assert str(tmp_path / "opt" / "lib") in folder.environment(found)["LD_LIBRARY_PATH"].split(":")
    folder.unlock()


@pytest.mark.parametrize("content", [b"\0libpython3.4.so.1.0\0", b"no library"])
def test_a_tritonserver_for_another_python_is_passed_over(tmp_path, monkeypatch, content):
    binary = installed_on_path(tmp_path / "opt", content)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    assert "pytriton" in find_installation().binary.parts


def test_the_backend_directory_holds_what_the_python_backend_needs():
    folder = RunFolder.create()
    folder.lay_out(find_installation())
    backend = folder.backend_directory / "python"
    assert (backend / "libtriton_python.so").resolve().stat().st_size > 0
    assert (backend / "triton_python_backend_utils.py").exists()
    assert os.access(backend / "triton_python_backend_stub", os.X_OK)
    folder.unlock()


def test_a_stub_without_its_executable_bit_is_copied_with_it(tmp_path):
    real = find_installation()
    stub = tmp_path / "stub"
    stub.write_bytes(b"#!/bin/true\n")
    stub.chmod(0o644)
    folder = RunFolder.create()
    folder.lay_out(Installation(real.binary, real.backends, stub, real.library_folders, real.version))
    placed = folder.backend_directory / "python" / "triton_python_backend_stub"
    assert os.access(placed, os.X_OK)
    assert placed.read_bytes() == stub.read_bytes()
    assert not os.access(stub, os.X_OK)
    folder.unlock()


def test_only_folders_that_nobody_holds_are_swept():
    held, left = RunFolder.create(), RunFolder.create()
    regions = [SHARED_MEMORY / f"{folder.shm_prefix}region" for folder in (held, left)]
    for region in regions:
        region.write_bytes(b"x")
    left.unlock()
    assert sweep_stale() == 1
    assert held.path.exists()
    assert regions[0].exists()
    assert not left.path.exists()
    assert not regions[1].exists()
    held.unlock()
    assert sweep_stale() == 1
    assert not regions[0].exists()
    assert sweep_stale() == 0


def test_a_process_that_inherited_the_lock_keeps_the_folder():
    folder = RunFolder.create()
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(folder.lock,), text=True
    )
    folder.unlock()
    assert sweep_stale() == 0
    child.communicate("\n")
    assert sweep_stale() == 1
    assert not folder.path.exists()


def test_a_folder_whose_name_is_a_pattern_sweeps_no_region(tmp_path):
    held = RunFolder.create()
    region = SHARED_MEMORY / f"{held.shm_prefix}region"
    region.write_bytes(b"x")
    (tmp_path / "hplm-triton-*").mkdir()
    (tmp_path / f"hplm-triton-[{held.path.name[12]}]*").mkdir()
    assert sweep_stale() == 2
    assert region.exists()
    held.unlock()
    assert sweep_stale() == 1
    assert not region.exists()


def test_folders_of_other_users_are_not_swept(tmp_path, monkeypatch):
    (tmp_path / "hplm-triton-0123").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert sweep_stale() == 0
    monkeypatch.undo()
    assert (tmp_path / "hplm-triton-0123").is_dir()


def test_the_key_of_an_operator_is_private_and_of_this_start():
    folders = [RunFolder.create(), RunFolder.create()]
    for folder in folders:
        path = folder.path / "admin-key"
        assert path.read_text() == folder.admin_key
        assert path.stat().st_mode & 0o777 == 0o600
        folder.unlock()
    assert folders[0].admin_key != folders[1].admin_key
    assert sweep_stale() == 2


def test_a_full_disk_leaves_neither_a_folder_nor_an_open_file(tmp_path):
    script = """
import contextlib, os, tempfile
from builder.serving.run_folder import RunFolder
tempfile.tempdir = sys.argv[1]
with contextlib.suppress(OSError), open(sys.argv[1] + "/filler", "wb", 0) as filler:
    while True: filler.write(b"x" * 4096)
before = os.listdir("/proc/self/fd")
try:
    RunFolder.create()
except OSError:
    assert (os.listdir(sys.argv[1]), os.listdir("/proc/self/fd")) == (["filler"], before)
else:
    raise AssertionError("the disk was not full")
"""
    run_on_small_disk(script, tmp_path / "disk", 64)
