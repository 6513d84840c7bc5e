"""A program under its keeper: it ends with the program that started it, however that ends, and leaves nothing behind.

Usage:
    kept = KeptProgram([binary, "--argument"], folder, environment, log_path, max_log_bytes=64 * MEBIBYTE)
    pid = kept.start()
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from builder.serving import keeper
from builder.serving.errors import ServerStartError
from builder.serving.log import LogFollower
from builder.serving.log_rotation import LogRotation
from builder.serving.run_folder import RunFolder

_KILL_TIMEOUT_S = 5.0
_END_S = 5.0
"""What the keeper needs beside the program's own time: the end of the whole group."""


class KeptProgram:
    """One process and its group.

    Args:
        command: The program and its arguments.
        folder: Its private folder, locked; the keeper removes it at the end.
        environment: All of its variables.
        log_path: What it says is appended there.
        max_log_bytes: Beyond it the log moves to `<name>.1`.
        grace_s: Time to end by itself, when it is to stop.
        on_log: Takes the lines of the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: RunFolder,
        environment: Mapping[str, str],
        log_path: Path,
        *,
        max_log_bytes: int,
        grace_s: float,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self._command = command
        self._folder = folder
        self._environment = environment
        self._log_path = log_path
        self._max_log_bytes = max_log_bytes
        self._grace_s = grace_s
        self._on_log = on_log
        self._keeper: subprocess.Popen[bytes] | None = None
        self._group: int | None = None
        """Of the program and what it started."""
        self._log: LogFollower | None = None

    def start(self) -> int:
        """Start it and return its process ID.

        Raises:
            ServerStartError: The keeper could not start it.
        """
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._log = LogFollower(self._log_path, self._on_log, LogRotation(self._log_path, self._max_log_bytes))
            self._keeper = subprocess.Popen(
                [*self._keeper_command(), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                pass_fds=(self._folder.lock,),
                start_new_session=True,  # an interrupt from the terminal reaches this program only
            )
        line = self._keeper.stdout.readline() if self._keeper.stdout is not None else b""
        if not line:
            raise ServerStartError("its keeper ended at once")
        self._group = int(line)
        return self._group

    @property
    def lines(self) -> list[str]:
        """The end of the log; it stays known when the program has ended."""
        return self._log.lines if self._log is not None else []

    def poll(self) -> int | None:
        """The exit code of the program; None while it runs."""
        return self._keeper.poll() if self._keeper is not None else None

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the program to end by itself; its exit code, or None when the time is over."""
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):
                return self._keeper.wait(timeout_s)
        return None

    def stop(self) -> None:
        """End the program and everything it started; harmless when it has ended already."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._wait_for_keeper(self._keeper)
        if self._log is not None:
            self._log.finish()

    def kill(self) -> None:
        """End the program at once, whatever it does; also one that is stopped or hangs."""
        if self._keeper is not None:
            for number in (keeper.KILL_SIGNAL, signal.SIGCONT):
                self._keeper.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_KILL_TIMEOUT_S)
                self.stop()
                return
            self._keeper.kill()
        self.stop()

    def _keeper_command(self) -> list[str]:
        script, folder = str(Path(keeper.__file__)), self._folder
        arguments = [str(folder.path), folder.shm_prefix, str(self._grace_s), str(folder.lock)]
        return [sys.executable, "-I", "-S", script, *arguments]

    def _wait_for_keeper(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(self._grace_s + _END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if process.returncode < 0:
            self._end_in_its_place()

    def _end_in_its_place(self) -> None:
        """Do what the killed keeper would have done: the program has ended with it, what that started has not."""
        if self._group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
        keeper.remove_remains(self._folder.path, self._folder.shm_prefix)
