"""The server's log: followed line by line, without harmless noise, and read for the reason of a failure."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from builder.serving.log_rotation import LogRotation

_POLL_S = 0.05
_NUM_LINES_KEPT = 1000
_NUM_LINES_SHOWN = 3
_NUM_LAST_LINES = 15
_MAX_REASON_CHARACTERS = 400

# What every machine without a GPU prints; none of it keeps the server from working.
_NOISE = re.compile(
    r"Failed to initialize NVML|DCGM unable to start|CudaDriverHelper has not been initialized"
    r"|unable to create stream for \S+ (CUDA driver version|no CUDA-capable)"
    r"|failed to allocate pinned system memory: no pinned memory pool"
    r"|CUDA memory pool disabled|pinned memory pool will not be available: (CUDA driver version|no CUDA-capable)"
)
_MODEL_FAILURE = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)")
_START_FAILURE = re.compile(
    r"(error while loading shared libraries: .*|Poll failed for model directory .*|failed to start .* service: .*"
    r"|Socket '.*' already in use.*|unrecognized option .*|Error: .*|error: .*)",
    re.IGNORECASE,
)
_DEATH = re.compile(r"(terminate called .*|a model's process ended by itself.*)")
_OF_MODEL = r"^\d{4}-\d\d-\d\d [\d:.]+ \w+: "
_PREFIX = re.compile(r'^[IWEF]\d{4} [\d:.]+ \d+ \S+:\d+\] "?|' + _OF_MODEL)
_COMPLAINT = re.compile(
    rf"^[EF]\d{{4}} |{_OF_MODEL}(WARNING|ERROR|CRITICAL) [\w.]+: |^a model's process ended by itself"
)
_INFORMATION = re.compile(r"^I\d{4} ")
_TABLE_ROW = re.compile(r"^[+|]")
_STACK_FRAME = re.compile(r"^ *\d+# ")


def is_noise(line: str) -> bool:
    return _NOISE.search(line) is not None


def is_complaint(line: str) -> bool:
    """Say whether a line that is no noise begins as Triton's errors do, or as the models' errors and warnings."""
    return _COMPLAINT.match(line) is not None


def last_lines(lines: Iterable[str]) -> list[str]:
    """Return the end of a log without noise and Triton's tables, each line shortened.

    What Triton says for information is left out where there is anything else.
    """
    meaningful = [line for line in lines if line.strip() and not _is_beside_the_point(line)]
    shown = [line for line in meaningful if not _INFORMATION.match(line)] or meaningful
    return [line[:_MAX_REASON_CHARACTERS] for line in shown[-_NUM_LAST_LINES:]]


def failure_reason(lines: Iterable[str]) -> str:
    """The few words of a log that say why the server did not start, or did not go on."""
    meaningful = [_message(line) for line in lines if line.strip() and not _is_beside_the_point(line)]
    reasons = [_model_failure(match) for line in meaningful if (match := _MODEL_FAILURE.search(line))]
    for pattern in (_DEATH, _START_FAILURE):
        reasons = reasons or [match.group(1) for line in meaningful if (match := pattern.search(line))]
    reasons = reasons or meaningful[-_NUM_LINES_SHOWN:]
    shortened = [reason[:_MAX_REASON_CHARACTERS] for reason in dict.fromkeys(reasons)]
    return "; ".join(shortened[:_NUM_LINES_SHOWN]) or "it wrote no log"


def _is_beside_the_point(line: str) -> bool:
    return is_noise(line) or any(pattern.match(line) for pattern in (_TABLE_ROW, _STACK_FRAME))


def _message(line: str) -> str:
    """A log line without its head and the quotation marks around its text."""
    return _PREFIX.sub("", line).removesuffix('"').strip()


def _model_failure(match: re.Match[str]) -> str:
    """One line of a Python traceback that Triton has folded into one log line."""
    error, _, frames = match["reason"].partition(r"\n\nAt:\n")
    frame = frames.split(r"\n")[0].strip()
    where = f" (at {frame})" if frame else ""
    error = error.removeprefix("Internal: ").replace(r"\n", " ").strip()
    return f"model {match['model']!r} did not load: {error}{where}"


class LogFollower:
    """Reads a growing log on a thread of its own; keeps the last lines, hands each one on, and rotates the log."""

    def __init__(self, path: Path, on_line: Callable[[str], None] | None, rotation: LogRotation | None = None) -> None:
        self._rotation = rotation
        self._file: BinaryIO = path.open("rb")
        # Earlier servers may have written to the same file.
        self._file.seek(0, 2)
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_NUM_LINES_KEPT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="triton-log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Read to the end of the log and stop; call it once the server has ended."""
        self._ended.set()
        self._thread.join()

    @property
    def lines(self) -> list[str]:
        return list(self._lines)

    def _follow(self) -> None:
        partial = b""
        with self._file:
            while True:
                is_last = self._ended.wait(_POLL_S)
                *whole, partial = (partial + self._read()).split(b"\n")
                for line in whole:
                    self._take(line.decode(errors="replace"))
                if is_last:
                    return

    def _read(self) -> bytes:
        """Read what is new; a log that was shortened meanwhile is read from its beginning."""
        content = b""
        with suppress(OSError):  # the server goes on without its log, and so does this
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)
            content = self._file.read()
            if self._rotation is not None:
                self._rotation.rotate_if_full(self._file)
        return content

    def _take(self, line: str) -> None:
        self._lines.append(line)
        if self._on_line is not None and not is_noise(line):
            with suppress(OSError):  # a screen that is gone, or a full disk behind it
                self._on_line(line)
