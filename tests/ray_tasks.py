"""Functions for tasks of a Ray cluster; a module of its own, which a node imports quickly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from backends.errors import TrainingDataError
from builder.executors.cluster import cluster_map


@dataclass(frozen=True)
class Failing:
    def __call__(self, number: int) -> int:
        if number == 3:
            raise TrainingDataError("chunk 3 is bad")
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


@dataclass(frozen=True)
class WaitForTheLoss:
    """Notes which node each attempt begins on; none ends before the folder holds `lost`."""

    folder: Path

    def __call__(self, number: int) -> int:
        import ray

        (self.folder / f"{number}-{ray.get_runtime_context().get_node_id()}").touch()
        while not (self.folder / "lost").exists():
            time.sleep(0.05)
        return number * number


@dataclass(frozen=True)
class KilledOnce:
    """Kills the process of each trial once its first checkpoint is there; notes how each attempt begins."""

    trial: Callable[[Any], Any]
    folder: Path

    def __call__(self, trial: Any) -> Any:
        path = trial.checkpoint.path
        attempt = len(list(self.folder.glob(f"{path.name}-*")))
        (self.folder / f"{path.name}-{attempt}").write_text("goes on" if path.exists() else "begins")
        if attempt == 0:
            Thread(target=kill_when_there, args=(path,), daemon=True).start()
        return self.trial(trial)


def kill_when_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


class MappingActor:
    """An actor that holds a CPU while tasks of its own run."""

    def squares(self, count: int) -> list[int]:
        return list(cluster_map(2)(square, range(count)))


def square(number: int) -> int:
    return number * number
