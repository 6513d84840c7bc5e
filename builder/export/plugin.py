"""The deadline batcher that an export takes along: a given one, or the one that is kept for this release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from builder.export.settings import ExportSettings
from builder.plugin import PluginError, kept_plugin, require_plugin

_WITHOUT = {
    "engine": "Triton will hand over requests one by one, which costs processor time under load",
    "triton": (
        "Triton will close batches by their number of rows alone, "
        "and a text with a damaged length will fail the requests that share its batch"
    ),
}


def with_plugin(settings: ExportSettings, say: Callable[[str], None]) -> ExportSettings:
    """Return settings with a plugin that this release can use; without one where it cannot be built, which is said."""
    if settings.plugin is not None:
        require_plugin(settings.plugin)
        return settings
    try:
        return replace(settings, plugin=kept_plugin(say))
    except PluginError as error:
        say(f"{error}; {_WITHOUT[settings.mode]}")
        return settings
