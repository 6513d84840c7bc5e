"""A process that keeps its view of a registry as a server's does, and times each look: `python -m bench.kit.poller`.

It says `ready` once it has read the registry, and writes its times as JSON when its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backends.errors import HplmError
from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.database import Database
from backends.registry.reader import RegistryReader
from backends.registry.snapshot import QUERY_PATIENCE_S, RegistrySnapshot

_READY = "ready"
_ENDS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Looks:
    """Milliseconds of the looks that brought something, and of those that brought nothing."""

    refreshes: list[float]
    idle: list[float]

    @classmethod
    def of_all(cls, each: Sequence[Looks]) -> Looks:
        return cls([ms for one in each for ms in one.refreshes], [ms for one in each for ms in one.idle])


class TimedSnapshot(RegistrySnapshot):
    def __init__(self, home: Home, instance: str) -> None:
        self.looks = Looks([], [])
        super().__init__(RegistryReader(Database.connect(home.registry_url, QUERY_PATIENCE_S)), instance=instance)

    def _read(self) -> None:
        before, start = self._position, time.perf_counter()
        super()._read()
        kind = self.looks.idle if self._position == before else self.looks.refreshes
        kind.append(1e3 * (time.perf_counter() - start))


class Pollers:
    """Running pollers of one registry."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def wait_ready(self) -> None:
        for process in self._processes:
            if _stream(process.stdout).readline().strip() != _READY:
                raise HplmError("a poller could not read the registry")

    def end(self) -> Looks:
        """End all, and return what they have seen; the first look of each reads everything, and is left out."""
        told = [process.communicate(timeout=_ENDS_WITHIN_S)[0] for process in self._processes]
        if any(process.returncode for process in self._processes):
            raise HplmError("a poller failed")
        seen = [Looks(**json.loads(text)) for text in told]
        return Looks.of_all([Looks(one.refreshes[1:], one.idle) for one in seen])


@contextmanager
def pollers(home: Home, count: int) -> Iterator[Pollers]:
    command = [sys.executable, "-m", "bench.kit.poller", str(home.path)]
    environment = {**os.environ, REGISTRY_VARIABLE: home.registry_url}
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(count)
    ]
    try:
        yield Pollers(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise HplmError("a poller has no output")
    return stream


def _poll(home: Home) -> None:
    with closing(TimedSnapshot(home, f"poller-{os.getpid()}")) as snapshot:
        print(_READY, flush=True)
        sys.stdin.read()
    print(json.dumps({"refreshes": snapshot.looks.refreshes, "idle": snapshot.looks.idle}), flush=True)


if __name__ == "__main__":
    _poll(Home(Path(sys.argv[1])))
