"""Writing the Triton model repository of a home.

Usage:
    render_repository(home / "repository", ExportSettings(upper_parameters={"dtype": "bf16"}))
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from backends.deadline_batcher import FILE_NAME
from backends.errors import NotFoundError
from backends.storage import publishing
from builder.export.config import ModelDescription, to_text
from builder.export.model_names import LOWER, UPPER, code_model, exported_models
from builder.export.models import all_models
from builder.export.plugin import with_plugin
from builder.export.settings import ExportSettings

_VERSION = "1"
_CODE = "model.py"
_CODE_PACKAGE = "model_repository"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def render_repository(
    repository: Path, settings: ExportSettings, code: Path | None = None, say: Callable[[str], None] = _to_stderr
) -> None:
    """Write all models beside the old repository and replace it with them; on failure the old one stays.

    The models' code comes from the package `model_repository` unless another folder of the same shape is given. What
    concerns the plugin goes to `say`: that it is being built, or why there is none.
    """
    source = code or installed_code()
    with with_plugin(settings, say) as complete, publishing(repository) as folder:
        for model in all_models(complete):
            _render_model(folder / model.name, model, source)
        if complete.plugin is not None:
            for name in exported_models(folder):
                shutil.copyfile(complete.plugin, folder / name / _VERSION / FILE_NAME)


def _render_model(folder: Path, model: ModelDescription, source: Path) -> None:
    # An ensemble has no code, but Triton wants its version folder too.
    version = folder / _VERSION
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(to_text(model), encoding="utf-8")
    if not model.steps:
        (version / _CODE).write_bytes(_model_code(source / code_model(model.name) / _VERSION / _CODE))


def is_of_installed_release(repository: Path) -> bool:
    """Whether the models' code is the installed one.

    Raises:
        NotFoundError: There is none.
    """
    source = installed_code()
    return all(
        _model_code(repository / name / _VERSION / _CODE) == _model_code(source / code_model(name) / _VERSION / _CODE)
        for name in {LOWER, UPPER, *exported_models(repository)}
    )


def installed_code() -> Path:
    """Return the folder of the models' code."""
    # A package without modules, so that its folder holds models only; an editable install lists a hook beside it.
    spec = find_spec(_CODE_PACKAGE)
    locations = (spec.submodule_search_locations if spec else None) or []
    folder = next((Path(each) for each in locations if Path(each).is_dir()), None)
    if folder is None:
        raise NotFoundError(f"the package {_CODE_PACKAGE} is not installed; run pip install again")
    return folder


def _model_code(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"the code of a Triton model is missing: {source}") from error
