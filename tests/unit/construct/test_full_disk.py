"""A disk that takes no more, as each command meets it: the kernel refuses to let any file grow beyond a limit."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cli
from backends.errors import NotFoundError
from backends.home import Home
from backends.lower.model import LowerModel
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, sample_texts, write_corpus, write_task
from builder.construct.domain.domains import create_domain
from builder.construct.root.distilled import export_distilled
from short_requests import new_domain


@pytest.fixture
def reason_on_a_full_disk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command here, where no file may grow, and gives the last line of its stderr, which holds no traceback."""

    def reason(limit_bytes: int, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *arguments])
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
        try:
            with pytest.raises(SystemExit) as stop:
                cli.main()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        printed = capsys.readouterr().err
        assert stop.value.code == 5, printed
        assert "Traceback" not in printed
        return printed.splitlines()[-1]

    return reason


def files_of(home: Home) -> set[Path]:
    """All but what is kept between tunings and can be deleted at any time, and the database's own notes."""
    files = (path for path in home.path.rglob("*") if path.is_file())
    return {path for path in files if home.states not in path.parents and not path.name.startswith("registry.db-")}


def test_a_domain_publishes_nothing_and_its_build_can_go_on(
    tiny_home: Home, tmp_path: Path, reason_on_a_full_disk: Callable[..., str]
) -> None:
    corpus = write_corpus(tmp_path / "big.txt", 400, seed=43)
    whole = ("--no-pretrain", "--theta", "1")
    arguments = ("domain", "create", "big", "--corpus", str(corpus), *whole, "--home", str(tiny_home.path))
    assert reason_on_a_full_disk(128 << 10, *arguments).startswith("hplm: no space left on the disk")
    registry = Registry.open(tiny_home)
    with pytest.raises(NotFoundError):
        registry.domain("tiny", "big")
    half = LowerModel.open(tiny_home, registry.domain("tiny", "farm"))
    assert half.encode([sample_texts(1, 1)[0].text]).rows
    assert create_domain(tiny_home, registry, new_domain("big", "tiny", (corpus,)), ignore).version == 1


@pytest.mark.parametrize("command", ["create", "update"])
def test_an_hplm_publishes_nothing(
    tiny_home: Home, tmp_path: Path, reason_on_a_full_disk: Callable[..., str], command: str
) -> None:
    train, dev = write_task(tmp_path, "topic", seed=50, train=40)
    hplm, domain = ("new/one", ("--domain", "farm")) if command == "create" else ("acme/topic", ())
    files = ("--train", str(train), "--dev", str(dev), "--epochs", "1")
    registry = Registry.open(tiny_home)  # open all the while: what SQLite shares between processes needs no room then
    before = files_of(tiny_home), registry.hplms()
    reason = reason_on_a_full_disk(16 << 10, command, hplm, *domain, *files, "--home", str(tiny_home.path))
    assert reason.startswith("hplm: no space left on the disk")
    assert (files_of(tiny_home), registry.hplms()) == before
    registry.close()


@pytest.mark.parametrize("from_file", [False, True])
def test_a_root_publishes_nothing(
    tiny_home: Home, built_home: Home, tmp_path: Path, reason_on_a_full_disk: Callable[..., str], from_file: bool
) -> None:
    """Without a file of distilled weights it is the checkpoint that does not fit, with one it is the root."""
    work = built_home.path.parent / "work"
    distilled = tmp_path / "distilled.safetensors"
    export_distilled(RootFolder(tiny_home.root("tiny")), distilled)
    more = ("--distilled", str(distilled)) if from_file else ("--steps", "2")
    sources = ("--from", str(work / "tiny-model"), "--corpus", str(work / "tiny-general.txt"))
    before = files_of(tiny_home)
    arguments = ("root", "add", "other", *sources, "--lower", "2", "--max-tokens", "32", *more)
    reason = reason_on_a_full_disk(64 << 10, *arguments, "--home", str(tiny_home.path))
    assert reason.startswith("hplm: no space left on the disk")
    assert files_of(tiny_home) == before
    assert not Registry.open(tiny_home).has_root("other")
