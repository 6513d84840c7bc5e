"""The same jobs and the same map on a Ray cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, sample_texts, write_task
from builder.construct.domain.ngrams import CountTexts, count_fragments
from builder.executors.cluster import RayMap, connect
from managed_home import LONG, SHORT, managing, worker_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'hplm[ray]'"),
]


def batches() -> Iterator[list[str]]:
    texts = [text.text for text in sample_texts(2000, seed=91)]
    return (texts[start : start + 250] for start in range(0, len(texts), 250))


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


def test_fragments_are_counted_on_ray(built_home: Home) -> None:
    root = CountTexts(built_home.root(Registry.open(built_home).roots()[0].name))
    here = count_fragments(batches(), root, 2000, ignore)
    ray = connect(None)
    try:
        there = count_fragments(batches(), root, 2000, ignore, RayMap(2))
    finally:
        ray.shutdown()
    np.testing.assert_array_equal(here.keys, there.keys)
    np.testing.assert_array_equal(here.counts, there.counts)
