"""Attempts on a Ray cluster: each an actor of its own, which a later manager finds by its name.

Every node needs this package, and the home and the registry at the same place as the manager: a shared file system and,
because SQLite does not work over a network, PostgreSQL.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

from backends.home import REGISTRY_VARIABLE, Home
from builder.executors.cluster import cluster_map, connect, require_gpu
from builder.manager.jobs import Job
from builder.manager.worker import run_attempt
from builder.manager.workers import TRY_AGAIN, Silence
from builder.requests.jobs import device_of, stored_request

_STARTS = 5
"""How often the actor of an attempt is started until the attempt begins."""


class Attempt:
    """The actor of an attempt; the same attempt that a local worker runs."""

    def run(self, home: str, job_id: int, attempt: int, tasks: int, device: str) -> int:
        url = _url_file(Home(Path(home)))
        if url.exists():
            os.environ[REGISTRY_VARIABLE] = url.read_text(encoding="utf-8")
        return run_attempt(Home(Path(home)), job_id, attempt, cluster_map(tasks), device)


class RayWorkers:
    """`tasks` is how many CPUs of the cluster each job may count and compute tables with, beside its own."""

    def __init__(self, home: Home, tasks: int, address: str | None) -> None:
        self._home = home
        self._tasks = tasks
        self._ray = connect(address)
        _write_url(home)
        self._actor = self._ray.remote(Attempt)
        self._endings: dict[str, Any] = {}
        self._starts: Counter[str] = Counter()
        self._silence = Silence()

    def start(self, job: Job) -> None:
        """Start the attempt that was just claimed; one after the first waits for a GPU that was lost with its node.

        Raises:
            InvalidArgumentError: It is the first, and needs a GPU that no node has.
        """
        if job.attempt == 1 and _on_gpu(job):
            require_gpu(self._ray)
        self._start_actor(job)

    def _start_actor(self, job: Job) -> None:
        name, on_gpu = _name(job), _on_gpu(job)
        self._starts[name] += 1
        actor = self._actor.options(name=name, lifetime="detached", num_cpus=1, num_gpus=int(on_gpu)).remote()
        device = "cuda" if on_gpu else "cpu"
        self._endings[name] = actor.run.remote(str(self._home.path), job.id, job.attempt, self._tasks, device)

    def ending(self, job: Job) -> str | None:
        ending = self._endings.get(_name(job))
        if ending is None:
            return "worker has not been heard of for a minute" if self._silence.is_too_long(job) else None
        if not self._ray.wait([ending], timeout=0)[0]:
            return None
        try:
            status = self._ray.get(ending)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayActorError) and self._starts_anew(job):
                return None
            return f"worker was lost: {type(error).__name__}"
        return "worker had to stop, its log says why" if status == TRY_AGAIN else "worker ended without a result"

    def _starts_anew(self, job: Job) -> bool:
        """Start an attempt that has not begun; false if it has, or was started too often.

        For some seconds a cluster goes on sending actors to a node that is lost.
        """
        name = _name(job)
        if job.worker is not None or self._starts[name] >= _STARTS:
            return False
        self.kill(job)
        self._start_actor(job)
        return True

    def kill(self, job: Job) -> None:
        with contextlib.suppress(ValueError):  # it is gone already
            self._ray.kill(self._ray.get_actor(_name(job)))

    def release(self, job: Job) -> None:
        self.kill(job)
        self._endings.pop(_name(job), None)
        del self._starts[_name(job)]
        self._silence.forget(job)

    def close(self) -> None:
        self._ray.shutdown()


def _url_file(home: Home) -> Path:
    return home.run / "registry-url"


def _write_url(home: Home) -> None:
    """Hand over the registry's URL, in which a password may stand, where the cluster does not show it."""
    path = _url_file(home)
    path.unlink(missing_ok=True)
    if url := os.environ.get(REGISTRY_VARIABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(url)


def _on_gpu(job: Job) -> bool:
    """Whether the job asks for a GPU; `auto` does not, and the one of `cuda:N` is the cluster's choice."""
    return (device_of(stored_request(job.request)) or "").startswith("cuda")


def _name(job: Job) -> str:
    return f"hplm-job-{job.id}-{job.attempt}"
