"""The parallel map over a Ray cluster; Ray is an extra, so it is looked for only when it is asked for."""

from __future__ import annotations

import importlib
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from backends.errors import InvalidArgumentError, UnavailableError
from builder.executors.mapping import Chunk, ParallelMap, Result, apply_pickled, in_order, map_here

_NAMESPACE = "hplm-manager"
_CHUNKS_PER_TASK_SLOT = 2


def ray_module() -> Any:
    """Import Ray, or say how to install it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InvalidArgumentError("the executor ray needs the package ray: pip install 'hplm[ray]'") from error


def connect(address: str | None) -> Any:
    """Join the cluster at an address, or start one on this machine that ends with this process."""
    ray = ray_module()
    alone = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise UnavailableError(f"no Ray cluster at {where}: {str(error).splitlines()[0]}") from error
    return ray


@dataclass(frozen=True)
class RayMap:
    """Chunks run as tasks of the cluster that this process belongs to, `tasks` at a time."""

    tasks: int

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        ray = ray_module()
        remote, pickled = ray.remote(apply_pickled), ray.put(pickle.dumps(function))

        def submit(chunk: Chunk) -> Any:
            return remote.remote(pickled, chunk)

        return in_order(submit, ray.get, chunks, _CHUNKS_PER_TASK_SLOT * self.tasks)


def cluster_map(tasks: int) -> ParallelMap:
    return map_here if tasks == 1 else RayMap(tasks)
