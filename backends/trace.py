"""Traces of a process: spans in lanes, written for Chrome's trace viewer. Off unless a folder is named.

Each process of a server writes its own file into the folder; `write_trace` of the builder makes one trace of
them. All spans are on the machine's monotonic clock, so the lanes of different processes are aligned.

Usage:
    start_tracing(folder, "hplm_upper")
    with span(Lane.COMPUTE, "run", rows=64):
        ...
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LOGGER = logging.getLogger(__name__)
TRACE_VARIABLE = "HPLM_TRACE"
"""Names the folder, in the environment of the server."""
_FLUSH_S = 0.5


class Lane(StrEnum):
    """The steps that a pipeline does side by side."""

    RETRIEVAL = "retrieval"
    QUEUE = "queue"
    LOADING = "adapter loading"
    STAGING = "staging"
    COMPUTE = "compute"
    ANSWERING = "answering"


class _Span:
    """Notes itself when it ends."""

    __slots__ = ("_args", "_lane", "_name", "_spans", "_start_cpu_ns", "_start_ns")

    def __init__(self, spans: deque[tuple[Any, ...]], lane: Lane, name: str, args: dict[str, int]) -> None:
        self._spans, self._lane, self._name, self._args = spans, lane, name, args

    def __enter__(self) -> Self:
        self._start_cpu_ns = time.thread_time_ns()
        self._start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_ns = time.monotonic_ns() - self._start_ns, time.thread_time_ns() - self._start_cpu_ns
        self._spans.append((self._lane, self._name, self._start_ns, *took_ns, self._args))


class Tracer:
    """Collects the spans of one process; a thread of its own writes them."""

    def __init__(self, folder: Path, process: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{process}.{os.getpid()}.jsonl").open("a", encoding="utf-8")
        self._process = process
        self._spans: deque[tuple[Any, ...]] = deque()
        self._failed = False
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def span(self, lane: Lane, name: str, args: dict[str, int]) -> AbstractContextManager[Any]:
        return _NOTHING if self._failed else _Span(self._spans, lane, name, args)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._write()
        # What could not be written is tried once more on closing.
        with suppress(OSError):
            self._file.close()

    def _run(self) -> None:
        while not self._failed and not self._stopping.wait(_FLUSH_S):
            self._write()

    def _write(self) -> None:
        """Write what is there. What cannot be written ends the trace, never the work that is traced."""
        if self._failed:
            return
        try:
            self._write_spans()
        except OSError as error:
            LOGGER.warning("the trace ends here: %s cannot be written: %s", self._file.name, error)
            self._failed = True
            self._spans.clear()

    def _write_spans(self) -> None:
        with self._writing:
            lines = []
            while self._spans:
                lane, name, start_ns, took_ns, cpu_ns, args = self._spans.popleft()
                times = {"ts": start_ns / 1e3, "dur": took_ns / 1e3, "tdur": cpu_ns / 1e3}
                event = {"cat": lane, "name": name, **times, "args": args, "process": self._process, "pid": os.getpid()}
                lines.append(json.dumps(event) + "\n")
            self._file.writelines(lines)
            self._file.flush()


_tracer: Tracer | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def start_tracing(folder: str | Path | None, process: str) -> None:
    """Trace this process from now on; without a folder, nothing happens."""
    global _tracer
    if folder and _tracer is None:
        _tracer = Tracer(Path(folder), process)
        atexit.register(stop_tracing)


def stop_tracing() -> None:
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def is_tracing() -> bool:
    return _tracer is not None


def span(lane: Lane, name: str, **args: int) -> AbstractContextManager[Any]:
    """Record a span around a block; costs a tenth of a microsecond while tracing is off."""
    tracer = _tracer
    return _NOTHING if tracer is None else tracer.span(lane, name, args)
