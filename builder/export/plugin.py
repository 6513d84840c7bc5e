"""The deadline batcher that an export takes along, built for it where none is given."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from backends.deadline_batcher import FILE_NAME
from builder.export.settings import ExportSettings
from builder.plugin import PluginError, build_plugin

_WITHOUT = (
    "Triton will close batches by their number of rows alone, "
    "and a text with a damaged length will fail the requests that share its batch"
)


@contextmanager
def with_plugin(settings: ExportSettings, on_failure: Callable[[str], None]) -> Iterator[ExportSettings]:
    """Settings of mode `triton` with a plugin that was built for them; without one where it cannot be built."""
    if settings.mode != "triton" or settings.plugin is not None:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="hplm_plugin_") as folder:
        built = Path(folder) / FILE_NAME
        try:
            build_plugin(built)
        except PluginError as error:
            on_failure(f"{error}; {_WITHOUT}")
            yield settings
        else:
            yield replace(settings, plugin=built)
