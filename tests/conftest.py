from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import cli
import seeds
from backends.deadline_batcher import FILE_NAME
from backends.home import Home
from builder.plugin import build_plugin
from seeds import SEED
from shared_builds import built_once

# What takes long to make for a session: servers, and the texts of all installed packages.
SHARED_FIXTURES = {"served", "served_bf16", "served_int8", "installed_harvest"}
RARE_MARKS = {"serial", "long"}
LONGEST_ID = 120
OF_TESTS = ("HPLM_TEST_", "HPLM_RANDOM_BATCHES")
"""What the names begin with of variables that are for the tests."""

# PyTorch and what imports it are imported where they are needed: pytest-xdist's own process, which only hands the tests
# out, reads this file too, and starts its workers when it has read it.


def pytest_configure() -> None:
    """Forget what the shell says to `hplm`: tests would write to a registry named there, and collect garbage."""
    for name in [name for name in os.environ if name.startswith("HPLM_")]:
        if not name.startswith(OF_TESTS):
            del os.environ[name]


def pytest_report_header() -> str:
    return f"seed: {SEED} (set {seeds.VARIABLE} to a number, or to random, for another)"


@pytest.fixture(autouse=True)
def same_beginning() -> Iterator[None]:
    """Begin every test with the run's seed and one PyTorch thread, whatever ran before it."""
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What this run keeps is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(built_once(tmp_path_factory, "cache", lambda _: None)))
        yield


@pytest.fixture(scope="session", autouse=True)
def without_proxy() -> Iterator[None]:
    """Keep a proxy of the environment from what tests, and the programs that they start, ask of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1,localhost", prepend=",")
        yield


@pytest.fixture(scope="session")
def built_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The tiny home that every test may read and none may change."""
    from bench.kit.tiny_home import build_tiny_home

    built = built_once(tmp_path_factory, "tiny_home", build_tiny_home)
    # Each worker opens a copy of its own: copying while another process has the registry open would race with SQLite.
    home = Home(Path(shutil.copytree(built, tmp_path_factory.mktemp("tiny") / "built")) / "home")
    before = _plots_of(home)
    yield home
    assert _plots_of(home) == before, "a test has written into the home that all share; let it copy tiny_home"


def _close_registry(home: Home) -> None:
    """Remove what SQLite keeps beside a registry that another test had open when it was copied."""
    with closing(sqlite3.connect(home.path / "registry.db")) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")


def _plots_of(home: Home) -> dict[Path, int]:
    """The sizes of all files of tables; serving adds some."""
    return {path: path.stat().st_size for path in home.path.joinpath("plots").rglob("*") if path.is_file()}


@pytest.fixture
def tiny_home(built_home: Home, tmp_path: Path) -> Home:
    """A copy of the tiny home for one test to change."""
    home = Home(Path(shutil.copytree(built_home.path, tmp_path / "home")))
    _close_registry(home)
    return home


@pytest.fixture(scope="session")
def built_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's batching plugin, as built for this release."""
    return built_once(tmp_path_factory, "plugin", lambda folder: build_plugin(folder / FILE_NAME)) / FILE_NAME


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bench.kit.tiny_home import write_tiny_bert

    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def run_hplm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command and give back what it printed; what fails is the reason, as text."""

    def hplm(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *map(str, arguments)])
        failed = False
        try:
            cli.main()
        except SystemExit as stop:
            failed = bool(stop.code)
        printed = capsys.readouterr()
        return (printed.err or printed.out).strip() if failed else printed.out

    return hplm


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that lack a mark which all tests of this run have: importing them all takes long."""
    marks = RARE_MARKS.intersection(config.option.markexpr.split(" and "))
    if not marks or collection_path.suffix != ".py":
        return None
    content = collection_path.read_text(encoding="utf-8")
    return any(f"pytest.mark.{mark}" not in content for mark in marks) or None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes and long texts by their argument: with a date or chance in them, each worker has names of its own."""
    return argname if isinstance(val, bytes) or (isinstance(val, str) and len(val) > LONGEST_ID) else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks at the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU; keep tests that share what takes long to make on one worker."""
    import torch

    torch.set_num_threads(1)  # the tests' models are so small that a second thread only waits
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _group(item: pytest.Item) -> str:
    shared = SHARED_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return min(shared) if shared else str(item.path)
