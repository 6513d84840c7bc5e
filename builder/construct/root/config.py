"""A root's recipe as one file, TOML or JSON: read, checked, and written back so that the root can be built again.

Usage:
    request = root_request("minilm", read_config(Path("root.toml")))
    print(as_toml(config_of(request)))
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from backends.errors import InvalidArgumentError, NotFoundError
from builder.construct.root.request import RootRequest

Config = dict[str, Any]
_PATHS = ("corpus", "held_out", "distilled")
_FIELD_NAMES = {"lower": "num_lower_layers"}
_FILE_NAMES = {ours: theirs for theirs, ours in _FIELD_NAMES.items()}


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


def root_request(name: str, config: Mapping[str, Any]) -> RootRequest:
    """The request that a configuration describes; an unknown key or a value of the wrong type is one clear line."""
    content = {_FIELD_NAMES.get(key, key): value for key, value in config.items()}
    if "name" in content or "num_lower_layers" in config:
        raise InvalidArgumentError("a root's configuration does not know 'name' and 'num_lower_layers'")
    request: RootRequest = _typed(RootRequest, {"name": name, **content}, "")
    return request


def config_of(request: RootRequest) -> Config:
    """What `root_request` needs to make this request again, with all defaults filled in."""
    content = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "name"}
    content["distil"] = request.training
    if (folder := Path(request.source).expanduser()).is_dir():
        content["source"] = str(folder.absolute())
    return {_FILE_NAMES.get(name, name): _plain(value) for name, value in content.items() if value is not None}


def as_toml(config: Mapping[str, Any]) -> str:
    """Single values first, then the tables."""
    lines = [f"{name} = {_toml(value)}" for name, value in config.items() if not isinstance(value, Mapping)]
    for name, table in config.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _based(folder: Path, name: str, value: Any) -> Any:
    if name in _PATHS and isinstance(value, list):
        return [_based(folder, name, one) for one in value]
    if name in _PATHS and isinstance(value, str):
        return str(folder / Path(value).expanduser())
    if name == "source" and isinstance(value, str) and (folder / value).is_dir():
        return str(folder / value)
    return value


def _typed(settings: type[Any], content: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(settings)
    if unknown := set(content) - set(hints):
        raise InvalidArgumentError(f"a root's configuration does not know {_named(where, sorted(unknown)[0])}")
    for field in fields(settings):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in content:
            raise InvalidArgumentError(f"a root's configuration needs {_named(where, field.name)}")
    return settings(**{name: _value(hints[name], value, _path(where, name)) for name, value in content.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) is UnionType:
        return _value(next(one for one in get_args(hint) if one is not NoneType), value, where)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _typed(hint, value, where)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], one, where) for one in value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise InvalidArgumentError(f"{where!r} in a root's configuration cannot be {value!r}")
    return value


def _path(where: str, name: str) -> str:
    file_name = _FILE_NAMES.get(name, name)
    return f"{where}.{file_name}" if where else file_name


def _named(where: str, name: str) -> str:
    return repr(_path(where, name))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: part for name, part in asdict(value).items() if part is not None}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def _toml(value: Any) -> str:
    # JSON's strings, numbers, lists and booleans are TOML's as well.
    return json.dumps(value, ensure_ascii=False)
