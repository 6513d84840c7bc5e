"""The deadline batcher that an export takes along: a given one, or that of this release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from builder.export.settings import ExportSettings
from builder.kept_plugin import plugin_of_this_release
from builder.plugin import PluginError, require_plugin

_WITHOUT = {
    "engine": "Triton will hand over requests one by one, which costs processor time under load",
    "triton": (
        "Triton will close batches by their number of rows alone, "
        "and a request that is damaged or large may fail those that share its batch"
    ),
}


@contextmanager
def with_plugin(settings: ExportSettings, say: Callable[[str], None]) -> Iterator[ExportSettings]:
    """Settings with the plugin that is taken along; without one where it cannot be built, which is said."""
    if settings.plugin is not None:
        require_plugin(settings.plugin)
    with ExitStack() as stack:
        if settings.takes_plugin and settings.plugin is None:
            try:
                plugin = stack.enter_context(plugin_of_this_release(say))
            except PluginError as error:
                say(f"{error}; {_WITHOUT[settings.mode]}")
            else:
                settings = replace(settings, plugin=plugin)
        yield settings
