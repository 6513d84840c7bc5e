"""A small Ray cluster of this machine: each node is a raylet with one CPU, to Ray a machine of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'hplm[ray]'")
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}


@contextmanager
def two_nodes(**of_head: int) -> Iterator[Any]:
    """A cluster of a head and another node; `remove_node` kills one as a power cut would."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the nodes, which import ray_tasks
        cluster: Any = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, **of_head})
        try:
            cluster.add_node(**NODE)
            yield cluster
        finally:
            cluster.shutdown()
