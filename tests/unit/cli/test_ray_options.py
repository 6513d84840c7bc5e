"""`--ray` as a user types it: what is answered where there is no cluster, no Ray, or nothing to share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
from backends.home import Home
from bench.kit.tiny_home import write_corpus, write_task
from builder.executors import cluster
from ray_cluster import NEEDS_RAY, two_nodes

Reason = Callable[..., str]


@pytest.fixture
def reason(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_home: Home) -> Reason:
    """Why a command fails."""

    def hplm(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *arguments, "--home", str(tiny_home.path)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return capsys.readouterr().err.strip() if stop.value.code else ""

    return hplm


def test_commands_hand_the_cluster_and_its_tasks_on(
    reason: Reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[tuple[str, int | None]] = []

    @contextmanager
    def noted(address: str, tasks: int | None) -> Iterator[Any]:
        joined.append((address, tasks))
        yield lambda function, chunks: map(function, chunks)

    monkeypatch.setattr(cluster, "cluster_map_at", noted)
    corpus = ("--corpus", str(write_corpus(tmp_path / "pond.txt", 200, seed=51)), "--no-pretrain")
    assert not reason("domain", "create", "pond", *corpus, "--ray", "head:6379")
    assert not reason("domain", "update", "pond", *corpus, "--ray", "auto", "--processes", "3")
    assert joined == [("head:6379", None), ("auto", 3)]


def test_one_trial_has_nothing_to_share(reason: Reason, tmp_path: Path) -> None:
    train, dev = map(str, write_task(tmp_path, "topic", seed=61, train=60))
    files = ("--train", train, "--dev", dev)
    for command in (("create", "new/one", "--domain", "farm"), ("update", "acme/topic")):
        assert "--search 2 or more" in reason(*command, *files, "--ray", "auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_this_machine_lacks_is_missed_before_a_cluster_is_joined(reason: Reason, tmp_path: Path) -> None:
    train, dev = map(str, write_task(tmp_path, "topic", seed=61, train=60))
    options = ("--search", "2", "--ray", "127.0.0.1:1", "--device", "cuda")
    said = reason("create", "new/one", "--domain", "farm", "--train", train, "--dev", dev, *options)
    assert said.startswith("hplm: --device cuda: this machine has no CUDA device")


def test_without_ray_nothing_is_built(reason: Reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    corpus = str(write_corpus(tmp_path / "pond.txt", 200, seed=51))
    said = reason("domain", "create", "pond", "--corpus", corpus, "--no-pretrain", "--ray", "auto")
    assert said == "hplm: builds on Ray need the package ray: pip install 'hplm[ray]'"


@pytest.mark.long
@NEEDS_RAY
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: [Errno 111] Connection refused"),
        ("head:99999", "no Ray cluster at head:99999: "),
        ("local", "'local' is no address of a Ray cluster; HOST:PORT of its head, or auto"),
        ("nonsense", "'nonsense' is no address of a Ray cluster; HOST:PORT of its head, or auto"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_clear_line(
    reason: Reason, tmp_path: Path, address: str, expected: str
) -> None:
    corpus = str(write_corpus(tmp_path / "pond.txt", 200, seed=51))
    said = reason("domain", "create", "pond", "--corpus", corpus, "--no-pretrain", "--ray", address)
    assert said.startswith(f"hplm: {expected}") and "\n" not in said


@pytest.mark.long
@NEEDS_RAY
def test_a_token_that_is_missing_is_one_clear_line(tiny_home: Home, tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "pond.txt", 200, seed=51))
    tokens = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}  # Ray reads them once in a process
    with two_nodes() as cluster:
        create = ("domain", "create", "pond", "--corpus", corpus, "--no-pretrain", "--ray", cluster.address)
        command = [str(Path(sys.executable).with_name("hplm")), *create, "--home", str(tiny_home.path)]
        done = subprocess.run(command, env=os.environ | tokens, capture_output=True, text=True, check=False)
        expected = f"hplm: no Ray cluster at {cluster.address}: Token authentication is enabled but no authentication"
    assert done.returncode and done.stderr.strip().splitlines()[-1].startswith(expected)
