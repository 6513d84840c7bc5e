"""What a server leaves behind once it has stopped: processes, shared memory, temporary files."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil

from backends.home import HOME_VARIABLE
from bench.kit.chaos.home import ChaosHome
from builder.serving.run_folder import SHARED_MEMORY, shm_prefix

_PATIENCE_S = 3.0
_POLL_S = 0.1


class Traces:
    """Signs of the processes and files of one home's servers, whatever else runs on the machine."""

    def __init__(self, made: ChaosHome) -> None:
        self._home = str(made.home.path.absolute())
        self._temporary = made.temporary
        self._folders: set[Path] = set()

    def note(self) -> None:
        """Take down the folder of the server that runs now; its name is that of its shared memory."""
        self._folders |= set(self._temporary.glob("hplm-triton-*"))

    def left(self) -> list[str]:
        """Name what is there though no server runs any more; the kernel takes a moment for processes."""
        end = time.monotonic() + _PATIENCE_S
        while (found := self._found()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return found

    def _found(self) -> list[str]:
        processes = [f"process {each.pid} {each.name()}" for each in psutil.process_iter() if self._is_ours(each)]
        shared = [path for folder in self._folders for path in SHARED_MEMORY.glob(f"{shm_prefix(folder)}*")]
        return [*processes, *map(str, shared), *map(str, self._temporary.iterdir())]

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return process.environ().get(HOME_VARIABLE) == self._home
        return False
