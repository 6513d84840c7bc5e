"""Trials of a search as tasks of other processes and nodes: the same versions as one after the other."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.recipe import AdapterRecipe
from backends.errors import UnavailableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, write_tagged, write_task
from builder.construct.hplm import build
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.executors.cluster import RayMap, cluster_map_at, cluster_trainings, cpu_share
from builder.executors.mapping import ParallelMap, apply_pickled, map_here
from builder.executors.processes import ProcessMap
from builder.progress import Report, Step
from builder.settings.hplm import TuneSettings
from ray_cluster import NEEDS_RAY, two_nodes
from ray_tasks import KilledOnce
from short_requests import changed, new_hplm, next_hplm

QUICK = TuneSettings(recipe=AdapterRecipe(width=4), epochs=2, learning_rate=1e-2)


def sent(function: Callable[[Any], Any], chunks: Iterable[Any]) -> Iterator[Any]:
    """A map whose function and chunks go through pickle, as to another machine."""
    return (pickle.loads(pickle.dumps(apply_pickled(pickle.dumps(function), chunk))) for chunk in chunks)


def searched(
    home: Home,
    hplm: str,
    files: Mapping[str, Any],
    fan_out: ParallelMap,
    report: Report = ignore,
    tune: TuneSettings = QUICK,
) -> Any:
    """The search's figures and the weights of a first version, and of the next one that goes on from it."""
    registry = Registry.open(home)
    request = changed(new_hplm(hplm, "tiny", "farm", **files, tune=tune), search=3)
    first = create_hplm(home, registry, request, report, fan_out=fan_out)
    again = changed(next_hplm(hplm, **files, force=True), search=2)
    second = update_hplm(home, registry, again, report, fan_out=fan_out)
    return [(entry.metrics["search"], weights(home, entry)) for entry in (first, second)]


def weights(home: Home, entry: HplmEntry) -> list[torch.Tensor]:
    artifact = read_artifact(home.path / entry.folder, RootFolder(home.root("tiny")).fingerprint)
    return [*artifact.adapters.named().values(), artifact.head.weight, artifact.head.bias]


def assert_same(one: Any, other: Any) -> None:
    for (figures, tensors), (other_figures, other_tensors) in zip(one, other, strict=True):
        assert figures == other_figures
        assert all(torch.equal(a, b) for a, b in zip(tensors, other_tensors, strict=True))


def files_of(task: str, folder: Path) -> dict[str, Any]:
    written = write_tagged(folder, seed=7) if task == "ner" else write_task(folder, "mood", seed=70, train=60)
    files: dict[str, Any] = dict(zip(("train", "dev"), written, strict=True))
    return {**files, "teacher": "dedicated"} if task == "taught" else files


@pytest.mark.parametrize("task", ["mood", *(pytest.param(each, marks=pytest.mark.long) for each in ("ner", "taught"))])
def test_trials_that_are_sent_away_come_to_the_same(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    files = files_of(task, tmp_path)
    here = searched(tiny_home, "new/here", files, map_here)
    monkeypatch.setattr(build, "cluster_trainings", lambda *_, **__: sent)
    steps: list[Step] = []
    assert_same(here, searched(tiny_home, "new/sent", files, map_here, steps.append))
    reported = [(step.done, step.total) for step in steps if "side by side" in step.phase]
    assert reported == [(0, 3), (1, 3), (2, 3), (3, 3), (0, 2), (1, 2), (2, 2)]
    assert not list(tiny_home.path.rglob("*.tuning-*"))


@pytest.mark.long
@NEEDS_RAY
def test_trials_on_two_nodes_come_to_the_same(tiny_home: Home, tmp_path: Path) -> None:
    files = files_of("mood", tmp_path)
    here = searched(tiny_home, "new/here", files, map_here)
    with two_nodes() as cluster, cluster_map_at(cluster.address, None) as over_nodes:
        assert_same(here, searched(tiny_home, "new/there", files, over_nodes))


@pytest.mark.long
@NEEDS_RAY
def test_a_trial_that_is_lost_goes_on_at_its_checkpoint(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, longer = files_of("mood", tmp_path), replace(QUICK, epochs=30, patience=30)
    here = searched(tiny_home, "new/here", files, map_here, tune=longer)
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    with two_nodes() as cluster, cluster_map_at(cluster.address, None) as over_nodes:

        def killing(function: Callable[[Any], Any], chunks: Iterable[Any]) -> Iterator[Any]:
            return over_nodes(KilledOnce(function, attempts), chunks)

        monkeypatch.setattr(build, "cluster_trainings", lambda *_, **__: killing)
        assert_same(here, searched(tiny_home, "new/there", files, over_nodes, tune=longer))
    begun = sorted((path.name[-1], path.read_text()) for path in attempts.iterdir())
    assert begun == [("0", "begins")] * 5 + [("1", "goes on")] * 5


@pytest.mark.parametrize(
    ("room", "count", "share"),
    [
        ([(8, 8)], 3, 2),
        ([(8, 8), (8, 8)], 3, 4),  # not 16 // 3: then four CPUs are idle
        ([(8, 8), (8, 8)], 2, 8),
        ([(8, 8), (2, 2)], 3, 2),
        ([(4, 4)], 9, 1),
        ([(16, 1), (64, 0)], 5, 16),  # a GPU, beside a node that has none
        ([(16, 2), (8, 1), (64, 0)], 8, 8),
    ],
)
def test_trials_share_the_cpus_of_the_nodes_that_can_run_them(
    room: list[tuple[int, int]], count: int, share: int
) -> None:
    assert cpu_share(room, count) == share


def test_a_cluster_without_a_cpu_for_a_trial_is_an_error() -> None:
    for room in ([], [(0, 1)], [(64, 0)]):
        with pytest.raises(UnavailableError, match="no node of the Ray cluster has a CPU"):
            cpu_share(room, 2)


def test_what_a_trial_takes_of_a_cluster() -> None:
    for alone in (map_here, ProcessMap(8)):
        assert cluster_trainings(alone, 4, on_gpu=False) is None  # one after the other, with all cores
    assert cluster_trainings(RayMap(8), 1, on_gpu=False) is None
    in_actor = RayMap(8, cpus=0)
    assert cluster_trainings(in_actor, 3, on_gpu=False) == in_actor
    assert cluster_trainings(in_actor, 3, on_gpu=True) is None
