"""A server that is traced from its start to its end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from backends.errors import InvalidArgumentError, NotFoundError
from backends.trace import TRACE_VARIABLE
from builder.serving.config import ServerConfig
from builder.serving.trace_file import overlap_line, read_spans, write_trace


@contextmanager
def traced(config: ServerConfig, path: Path | None, on_trace: Callable[[str], None]) -> Iterator[ServerConfig]:
    """Yield the configuration to start the server with; once it has ended, write its trace and report it in one line.

    Without a path the server is not traced.
    """
    if path is None:
        yield config
        return
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"the folder of the trace {path} does not exist")
    if path.is_dir():
        raise InvalidArgumentError(f"the trace {path} is a folder; name a file")
    with tempfile.TemporaryDirectory(prefix="hplm-trace-") as folder:
        try:
            yield replace(config, environment={**config.environment, TRACE_VARIABLE: folder})
        finally:
            spans = read_spans(Path(folder))
            write_trace(path, spans)
            on_trace(f"{path}: {len(spans)} spans; {overlap_line(spans)}")
