"""The parallel map over a Ray cluster; Ray is an extra, so it is looked for only when it is asked for."""

from __future__ import annotations

import importlib
import logging
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from backends.errors import InvalidArgumentError, UnavailableError, shown
from builder.executors.mapping import Chunk, ParallelMap, Result, apply_pickled, in_order, map_here

_NAMESPACE = "hplm-manager"
_CHUNKS_PER_TASK_SLOT = 2
"""Where Ray itself limits how many tasks run at once, the next ones wait on their nodes."""
_RETRIES = 3
_PROBE_S = 5.0


def ray_module() -> Any:
    """Import Ray, or say how to install it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InvalidArgumentError("builds on Ray need the package ray: pip install 'hplm[ray]'") from error


def connect(address: str | None) -> Any:
    """Join the cluster at an address, or start one on this machine that ends with this process."""
    ray = ray_module()
    if address is not None and address != "auto":
        _require_reachable(address)
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    alone = {"address": "local", "include_dashboard": False}  # "local" also where RAY_ADDRESS names a cluster
    try:
        with _own_sigterm_handler():
            ray.init(namespace=_NAMESPACE, **quiet, **({"address": address} if address else alone))
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where, reason = address or "this machine", " ".join(str(error).split())
        raise UnavailableError(f"no Ray cluster at {where}: {reason or type(error).__name__}") from error
    return ray


@contextmanager
def cluster_map_at(address: str, tasks: int | None) -> Iterator[ParallelMap]:
    """Join a cluster for a while, and map over its nodes: by default as many tasks at once as it has CPUs."""
    ray = connect(address)
    try:
        yield RayMap(tasks or _total_cpus(ray))
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class RayMap:
    """Chunks run as tasks of the cluster that this process belongs to, `tasks` at a time.

    Each takes so many CPUs and GPUs of its node. A task that is lost with its worker or node runs again on another one.
    An error of the function itself arrives as it was; a task that is lost again and again is an `UnavailableError`.
    """

    tasks: int
    cpus: int = 1
    """Of an actor's tasks none: actors hold a CPU each while they wait, and would wait for each other's for ever."""
    gpus: int = 0

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        ray = ray_module()
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}
        remote = ray.remote(apply_pickled).options(**options, max_retries=_RETRIES)
        pickled = ray.put(pickle.dumps(function))

        def submit(chunk: Chunk) -> Any:
            return remote.remote(pickled, chunk)

        try:
            yield from in_order(submit, ray.get, chunks, self._in_flight(ray))
        except ray.exceptions.RayError as error:
            raise _own_error(error, ray.exceptions) from error

    def _in_flight(self, ray: Any) -> int:
        """Hand out no more chunks than tasks may run at once, except where the cluster has no CPUs for more."""
        is_whole_cluster = self.cpus * self.tasks >= _total_cpus(ray)
        return _CHUNKS_PER_TASK_SLOT * self.tasks if is_whole_cluster else self.tasks


def cluster_trainings(fan_out: ParallelMap, count: int, on_gpu: bool) -> RayMap | None:
    """The map for several trainings where `fan_out` spans a cluster: its CPUs shared out, or a GPU for each.

    An actor's run on a thread each. None for one training, on this machine, and on an actor's GPU: there they run one
    after the other, with all that it has.
    """
    if count < 2 or not isinstance(fan_out, RayMap):
        return None
    if not fan_out.cpus:
        return None if on_gpu else fan_out
    ray = ray_module()
    if on_gpu:
        require_gpu(ray)
    room = [(cpus, gpus if on_gpu else cpus) for cpus, gpus in _nodes(ray)]
    return RayMap(fan_out.tasks, cpu_share(room, count), int(on_gpu))


def cpu_share(room: Sequence[tuple[int, int]], count: int) -> int:
    """Return how many CPUs each of `count` trainings can have, while as many run at once as if each had one.

    Args:
        room: The CPUs of each node, and how many trainings may run there at once.
        count: How many trainings there are.

    Raises:
        UnavailableError: None can run.
    """

    def at_once(share: int) -> int:
        return sum(min(cpus // share, most) for cpus, most in room)

    wanted = min(count, at_once(1))
    if wanted == 0:
        raise UnavailableError("no node of the Ray cluster has a CPU that a training could take")
    return max(share for share in range(1, max(cpus for cpus, _ in room) + 1) if at_once(share) >= wanted)


def cluster_map(tasks: int) -> ParallelMap:
    """The map of an actor."""
    return map_here if tasks == 1 else RayMap(tasks, cpus=0)


def require_gpu(ray: Any) -> None:
    if not ray.cluster_resources().get("GPU"):
        raise InvalidArgumentError("no node of the Ray cluster has a GPU; the device cpu needs none")


def _nodes(ray: Any) -> list[tuple[int, int]]:
    """Return the CPUs and GPUs of each node that lives."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in resources]


def _total_cpus(ray: Any) -> int:
    total = sum(cpus for cpus, _ in _nodes(ray))
    if total == 0:
        raise UnavailableError("the Ray cluster has no CPU")
    return total


def _own_error(error: Exception, exceptions: Any) -> Exception:
    """The error that a function has raised on another node, or that the cluster has lost it."""
    if isinstance(error, exceptions.RayTaskError) and not isinstance(error.cause, exceptions.RayError):
        cause: Exception = error.cause
        return cause
    return UnavailableError(
        f"a task of a parallel step was lost on the Ray cluster ({_kind(error)}); the build goes on when repeated"
    )


def _kind(error: Exception) -> str:
    return type(getattr(error, "cause", error)).__name__


def _require_reachable(address: str) -> None:
    """Ask for a connection first: Ray itself writes warnings for minutes where no cluster listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgumentError(f"{shown(address)} is no address of a Ray cluster; HOST:PORT of its head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise UnavailableError(f"no Ray cluster at {address}: {error}") from error


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Keep what SIGTERM does to this program; joining a cluster sets a handler that exits at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
