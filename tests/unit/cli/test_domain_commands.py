"""The `hplm domain` commands as a user types them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cli
from backends.home import Home
from bench.kit.tiny_home import write_corpus
from builder.executors.processes import ProcessMap

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_home: Home) -> Run:
    """The stdout of a command that succeeds, or the reason of one that fails."""

    def hplm(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", "domain", *arguments, "--home", str(tiny_home.path)])
        capsys.readouterr()
        try:
            cli.main()
        except SystemExit as stop:
            if stop.code:
                return capsys.readouterr().err.strip()
        return capsys.readouterr().out

    return hplm


def test_create_update_show_and_list(run: Run, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pond.txt", 200, seed=51)
    steps = ("--mlm-steps", "2", "--head-steps", "2", "--theta", "0.2")
    assert "mlm_loss_after" in run("create", "pond", "--corpus", str(corpus), "--parent", "farm@1", *steps)
    run("update", "pond", "--corpus", str(corpus), "--no-pretrain")
    first, live = (json.loads(run("show", name, "--json")) for name in ("pond@1", "pond"))
    assert (first["version"], live["version"], live["parent"]) == (1, 2, "farm@1")
    assert first["pretrain_steps"] == live["pretrain_steps"] == 2
    assert live["theta"] == 0.2
    assert live["tokens"] == 2 * first["tokens"]
    for share in ("own_share", "chain_share", "held_out_own_share", "held_out_chain_share"):
        assert 0 < live[share] <= 1
    listed = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert set(listed) == {"general", "farm", "street", "pond"}
    assert listed["pond"]["version"] == 2
    assert listed["general"]["parent"] is None


def test_builds_fan_out_over_as_many_processes_as_asked(
    run: Run, tiny_home: Home, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def noted(self: ProcessMap, function: Callable[[Any], Any], chunks: Iterable[Any]) -> Iterator[Any]:
        used.append(self.processes)
        return map(function, chunks)

    monkeypatch.setattr(ProcessMap, "__call__", noted)
    corpus = str(write_corpus(tmp_path / "pond.txt", 400, seed=51))
    run("create", "pond", "--corpus", corpus, "--no-pretrain")
    assert used == []
    run("update", "pond", "--corpus", corpus, "--no-pretrain", "--processes", "2")
    run("create", "pool", "--corpus", corpus, "--no-pretrain", "--processes", "3")
    assert used == [2, 2, 3, 3]  # counting, and computing
    assert json.loads(run("show", "pond", "--json"))["version"] == 2
    distil = tmp_path / "root.toml"
    distil.write_text("max_tokens = 64\n[distil]\nsteps = 2\ntokens_per_batch = 512\n")
    root = ["root", "add", "r", "--from", str(tiny_bert), "--lower", "2", "--corpus", corpus, "--config", str(distil)]
    monkeypatch.setattr(sys, "argv", ["hplm", *root, "--processes", "2", "--home", str(tiny_home.path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert used[4:] == [2, 2]


def test_coverage_and_its_picture(run: Run, tmp_path: Path) -> None:
    rows = json.loads(run("coverage", "farm", "--json"))
    assert [row["theta"] for row in rows] == sorted(row["theta"] for row in rows)
    assert rows[-1] == {"theta": 1.0, "fragments": rows[-1]["fragments"], "share": 1.0}
    for suffix, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"pictures/farm{suffix}"
        run("coverage", "farm", "--plot", str(path))
        assert path.read_bytes().startswith(start)
    assert ".svg, .png, .pdf" in run("coverage", "farm", "--plot", str(tmp_path / "farm.txt"))


def test_what_cannot_be_done(run: Run, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pond.txt", 200, seed=51)
    (tmp_path / "photo.txt").write_bytes(bytes(range(256)) * 10)
    assert "domain update" in run("create", "farm", "--corpus", str(corpus))
    assert "'moon'" in run("update", "moon", "--corpus", str(corpus))
    assert "has no version 7" in run("create", "pond", "--corpus", str(corpus), "--parent", "farm@7")
    assert "photo.txt:1: holds a NUL byte" in run("create", "pond", "--corpus", str(tmp_path / "photo.txt"))
    assert "does not exist" in run("create", "pond", "--corpus", str(tmp_path / "none.txt"))
    assert "'typo'" in run("list", "--root", "typo")
