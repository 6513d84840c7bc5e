"""The parallel map on a Ray cluster of two nodes: the same results as on processes, also when a node is lost."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.errors import InvalidArgumentError, TrainingDataError, UnavailableError
from backends.home import Home
from backends.plot.header import Store
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, write_corpus
from builder.construct.domain.domains import create_domain
from builder.executors import cluster as cluster_module
from builder.executors.cluster import RayMap, cluster_map_at
from builder.executors.processes import ProcessMap
from garden_domain import opened
from ray_cluster import NEEDS_RAY, NODE, two_nodes
from ray_tasks import Failing, MappingActor, WaitForTheLoss, square
from short_requests import new_domain

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as cluster:
        yield cluster


@pytest.mark.long
@NEEDS_RAY
def test_a_domain_is_counted_and_computed_as_on_processes(cluster: Any, tiny_home: Home, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "garden.txt", 400, seed=38)
    registry = Registry.open(tiny_home)
    with cluster_map_at(cluster.address, None) as over_nodes:
        assert over_nodes == RayMap(2)  # a CPU of each node
        for name, fan_out in (("local", ProcessMap(2)), ("remote", over_nodes)):
            create_domain(tiny_home, registry, new_domain(name, "tiny", [corpus]), ignore, fan_out)
    local, remote = (opened(tiny_home, name)[2] for name in ("local", "remote"))
    rows = np.arange(local.store(Store.TRI).entries)
    assert len(rows) > 100
    np.testing.assert_array_equal(local.keys(Store.TRI), remote.keys(Store.TRI))
    np.testing.assert_array_equal(local.vectors(Store.TRI, rows), remote.vectors(Store.TRI, rows))


@pytest.mark.long
@NEEDS_RAY
def test_a_lost_node_means_another_attempt(cluster: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(**NODE)
    cluster.wait_for_nodes()

    def attempts() -> Counter[str]:
        return Counter(path.name.split("-")[0] for path in tmp_path.glob("*-*"))

    def chunks() -> Iterator[int]:
        yield from range(6)
        deadline = time.monotonic() + PATIENCE_S
        while not list(tmp_path.glob(f"*-{doomed.node_id}")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert attempts()
        cluster.remove_node(doomed, allow_graceful=False)
        (tmp_path / "lost").touch()
        yield from range(6, 10)

    with cluster_map_at(cluster.address, 4) as over_nodes:
        assert list(over_nodes(WaitForTheLoss(tmp_path), chunks())) == [number * number for number in range(10)]
    begun_there = {path.name.split("-")[0] for path in tmp_path.glob(f"*-{doomed.node_id}")}
    assert begun_there and all(attempts()[number] > 1 for number in begun_there)


@pytest.mark.long
@NEEDS_RAY
def test_errors_are_those_of_processes(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_RETRIES", 1)
    with cluster_map_at(cluster.address, 2) as over_nodes:
        with pytest.raises(TrainingDataError, match=r"^chunk 3 is bad$"):
            list(over_nodes(Failing(), [1, 3]))
        with pytest.raises(UnavailableError, match=r"lost on the Ray cluster \(WorkerCrashedError\)"):
            list(over_nodes(Failing(), [1, 5]))


@pytest.mark.long
@NEEDS_RAY
def test_actors_that_hold_all_cpus_do_not_wait_for_each_other(cluster: Any) -> None:
    with cluster_map_at(cluster.address, None):
        ray = cluster_module.ray_module()
        actors = [ray.remote(MappingActor).options(num_cpus=1).remote() for _ in range(2)]
        squares = ray.get([actor.squares.remote(5) for actor in actors], timeout=PATIENCE_S)
    assert squares == [[0, 1, 4, 9, 16]] * 2


@pytest.mark.long
@NEEDS_RAY
@pytest.mark.parametrize(("tasks", "in_flight"), [(1, 1), (2, 4)])  # of the whole cluster, some wait on their node
def test_no_more_tasks_run_than_were_asked_for(cluster: Any, tasks: int, in_flight: int) -> None:
    taken: list[int] = []

    def chunks() -> Iterator[int]:
        for number in range(8):
            taken.append(number)
            yield number

    with cluster_map_at(cluster.address, tasks) as over_nodes:
        results = iter(over_nodes(square, chunks()))
        assert next(results) == 0 and len(taken) == in_flight
        assert list(results) == [number * number for number in range(1, 8)]


@pytest.mark.long
@NEEDS_RAY
def test_a_cluster_without_a_cpu_maps_nothing() -> None:
    with two_nodes(num_cpus=0) as cluster:
        (worker,) = cluster.worker_nodes
        cluster.remove_node(worker)
        with pytest.raises(UnavailableError, match="the Ray cluster has no CPU"), cluster_map_at(cluster.address, None):
            pass


@pytest.mark.long
@NEEDS_RAY
def test_joining_a_cluster_keeps_what_a_signal_does(cluster: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cluster_map_at(cluster.address, 1):
        assert signal.getsignal(signal.SIGTERM) is before


def test_without_ray_a_build_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = pytest.raises(InvalidArgumentError, match=r"need the package ray: pip install 'hplm\[ray\]'")
    with missing, cluster_map_at("127.0.0.1:6379", 2):
        pass
