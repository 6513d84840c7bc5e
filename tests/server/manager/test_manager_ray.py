"""The same jobs on a Ray cluster: one of the manager's own, and one of two nodes that loses the job's."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.home import Home
from bench.kit.tiny_home import write_task
from living_processes import living
from managed_home import LONG, SHORT, managing, worker_of
from ray_cluster import NEEDS_RAY, NODE, two_nodes

pytestmark = [pytest.mark.long, NEEDS_RAY]


def test_jobs_run_are_killed_and_cancelled_on_ray(tiny_home: Home, tmp_path: Path) -> None:
    files = write_task(tmp_path, "topic", seed=61, train=60)
    with managing(tiny_home, "--executor", "ray") as managed:
        done = managed.end(managed.tune(files, domain="farm", tune=SHORT))
        assert (done["state"], done["result"]["version"]) == ("done", 1)
        assert "tune adapters and head" in managed.log(done["id"])
        job = managed.tune(files, kind="hplm.update", id="acme/topic", tune=LONG)
        worker_of(managed.at_work(job)).kill()
        assert managed.at_work(job, 2)["interruption"] == "worker was lost: ActorDiedError"
        managed.http.post(f"/v1/jobs/{job}/cancel")
        assert managed.end(job)["state"] == "cancelled"
        assert managed.live_version("acme/topic") == 1


def test_a_job_whose_node_is_lost_gets_its_second_attempt(tiny_home: Home, tmp_path: Path) -> None:
    files = write_task(tmp_path, "topic", seed=61, train=60)
    with two_nodes(num_cpus=0) as cluster:  # jobs run on the other node
        options = ("--executor", "ray", "--ray-address", cluster.address)
        with managing(tiny_home, *options) as managed:
            job = managed.tune(files, domain="farm", tune=LONG)
            first = worker_of(managed.at_work(job))
            (lost,) = cluster.worker_nodes
            cluster.remove_node(lost, allow_graceful=False)
            cluster.add_node(**NODE)
            assert managed.at_work(job, 2)["interruption"].startswith("worker was lost: Actor")  # died, or unavailable
            assert not living([first]) and "resuming" in managed.log(job)
            managed.http.post(f"/v1/jobs/{job}/cancel")
            assert managed.end(job)["state"] == "cancelled"


def test_a_gpu_that_no_node_has_fails_the_job(tiny_home: Home, tmp_path: Path) -> None:
    files = write_task(tmp_path, "topic", seed=61, train=60)
    with two_nodes() as cluster, managing(tiny_home, "--executor", "ray", "--ray-address", cluster.address) as managed:
        failed = managed.end(managed.tune(files, domain="farm", tune=SHORT, device="cuda"))
        assert "no node of the Ray cluster has a GPU" in failed["error"]["message"]
