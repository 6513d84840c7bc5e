"""Parameters of the models in the rendered repository of a home."""

from __future__ import annotations

from backends.home import Home
from backends.model_settings import ModelSettings
from builder.export.config import ModelDescription, from_text
from builder.export.model_names import UPPER
from builder.export.models import upper
from builder.export.settings import HOME_PARAMETER, ExportSettings


def upper_settings(home: Home) -> tuple[ModelSettings, bool]:
    """Read the parameters of the upper model, and whether it is on a GPU; before an export, the defaults."""
    path = home.repository / UPPER / "config.pbtxt"
    description: ModelDescription = (
        from_text(path.read_text(encoding="utf-8")) if path.exists() else upper(ExportSettings())
    )
    parameters = {name: value for name, value in description.parameters.items() if name != HOME_PARAMETER}
    on_gpu = description.instances is not None and description.instances.kind == "GPU"
    return ModelSettings(home, parameters), on_gpu
