"""What a server reads: tables, banks and the rendered Triton repository."""

from builder.export.repository import render_repository
from builder.export.settings import ExportSettings

__all__ = ["ExportSettings", "render_repository"]
