"""The parallel map over a Ray cluster; Ray is an extra, so it is looked for only when it is asked for."""

from __future__ import annotations

import importlib
import logging
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from backends.errors import InvalidArgumentError, UnavailableError, shown
from builder.executors.mapping import Chunk, ParallelMap, Result, apply_pickled, in_order, map_here

_NAMESPACE = "hplm-manager"
_CHUNKS_PER_TASK_SLOT = 2
_RETRIES = 3
_WITHOUT_PORT = ("auto", "local")
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
    if address and address not in _WITHOUT_PORT:
        _require_reachable(address)
    alone = {} if address else {"include_dashboard": False}
    try:
        with _own_sigterm_handler():
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise UnavailableError(f"no Ray cluster at {where}: {str(error).splitlines()[0]}") from error
    return ray


@contextmanager
def cluster_map_at(address: str, tasks: int | None) -> Iterator[ParallelMap]:
    """Join a cluster for a while, and map over its nodes: by default as many tasks at once as it has CPUs."""
    ray = connect(address)
    try:
        yield RayMap(tasks or max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class RayMap:
    """Chunks run as tasks of the cluster that this process belongs to, `tasks` at a time.

    Each takes so many CPUs and GPUs of its node; where no node has as many CPUs, all of one. A task that is lost with
    its worker or node runs again on another one. An error of the function itself arrives as it was; a task that is lost
    again and again is an `UnavailableError`.
    """

    tasks: int
    cpus: int = 1
    gpus: int = 0
    in_actor: bool = False
    """Whether an actor maps: that holds its own CPU, and GPU if it has one, while it waits for its tasks."""

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        ray = ray_module()
        remote = ray.remote(apply_pickled).options(num_cpus=self._cpus(ray), num_gpus=self.gpus, max_retries=_RETRIES)
        pickled = ray.put(pickle.dumps(function))

        def submit(chunk: Chunk) -> Any:
            return remote.remote(pickled, chunk)

        try:
            yield from in_order(submit, ray.get, chunks, _CHUNKS_PER_TASK_SLOT * self.tasks)
        except ray.exceptions.RayError as error:
            raise _own_error(error, ray.exceptions) from error

    def _cpus(self, ray: Any) -> int:
        """The CPUs of a task, no more than a node has that can run it: otherwise it would wait for ever."""
        if self.gpus:
            require_gpu(ray)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return min(self.cpus, max(int(node.get("CPU", 0)) for node in nodes if node.get("GPU", 0) >= self.gpus) or 1)


def cluster_trainings(fan_out: ParallelMap, count: int, on_gpu: bool) -> RayMap | None:
    """The map for several trainings where `fan_out` spans a cluster: its CPUs shared out, or a GPU for each.

    An actor's take one CPU each, because two actors whose tasks need more could wait for each other for ever. None for
    one training, on this machine, and on an actor's GPU: there they run one after the other, with all that it has.
    """
    if count < 2 or not isinstance(fan_out, RayMap):
        return None
    if fan_out.in_actor:
        return None if on_gpu else fan_out
    return RayMap(fan_out.tasks, max(1, fan_out.tasks // count), int(on_gpu))


def cluster_map(tasks: int) -> ParallelMap:
    """The map of an actor."""
    return map_here if tasks == 1 else RayMap(tasks, in_actor=True)


def require_gpu(ray: Any) -> None:
    if not ray.cluster_resources().get("GPU"):
        raise InvalidArgumentError("no node of the Ray cluster has a GPU; the device cpu needs none")


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
    """Ask for a connection first: Ray itself writes warnings for minutes where nobody listens."""
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
