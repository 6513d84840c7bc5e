"""A root's recipe as one file, TOML or JSON: read, checked, and written back so that the root can be built again.

Usage:
    request = root_request("minilm", read_config(Path("root.toml")))
    print(tomli_w.dumps(config_of(request)))
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backends.errors import InvalidArgumentError, NotFoundError
from builder.requests.base import one_line
from builder.requests.roots import AddRoot
from builder.user_paths import is_folder, user_path

Config = dict[str, Any]
_PATHS = ("corpus", "held_out", "distilled")


def read_config(path: Path) -> Config:
    """The content of a file, its relative paths made absolute; a model's folder too, if there is one of that name."""
    if not path.is_file():
        raise NotFoundError(f"configuration {path} does not exist")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{path}: not a table of settings")
    return {name: _based(path.absolute().parent, name, value) for name, value in content.items()}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Config:
    """Both together; what `above` says goes, and what is None there it does not say."""
    result = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(name, {}), Mapping):
            if inner := merged(result.get(name, {}), value):
                result[name] = inner
        elif value is not None:
            result[name] = value
    return result


def root_request(name: str, config: Mapping[str, Any]) -> AddRoot:
    """The request that a configuration describes; an unknown key or a value of the wrong type is one clear line."""
    if "name" in config:
        raise InvalidArgumentError("a root's configuration does not know 'name'")
    try:
        return AddRoot.model_validate_json(json.dumps({"name": name, **config}, default=str))
    except ValidationError as error:
        raise InvalidArgumentError(f"a root's configuration: {one_line(error)}") from error


def config_of(request: AddRoot) -> Config:
    """Write down a request for `root_request`, with all defaults filled in."""
    source = user_path(request.source)
    paths = [*request.corpus, *request.held_out, *([request.distilled] if request.distilled else [])]
    absolute = request.with_files({path: path.absolute() for path in paths}).model_copy(
        update={"distil": request.training, "source": str(source.absolute()) if source.is_dir() else request.source}
    )
    return absolute.model_dump(mode="json", exclude={"name", "device"}, exclude_none=True)


def _based(folder: Path, name: str, value: Any) -> Any:
    if name in _PATHS and isinstance(value, list):
        return [_based(folder, name, one) for one in value]
    if name in _PATHS and isinstance(value, str):
        return str(folder / user_path(value))
    if name == "source" and isinstance(value, str) and is_folder(folder / value):
        return str(folder / value)
    return value
