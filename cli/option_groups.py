"""Commands whose options come in groups: dataclasses whose fields are options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let Typer see every field of a command's dataclass parameters as an option of its own.

    Usage:
        @dataclass(frozen=True)
        class TargetOptions:
            url: Annotated[str, typer.Option(help="Address.")] = "localhost"

        app.command()(grouped(ping))  # ping(target: TargetOptions, count: int = 1) has --url and --count
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += _options_of(groups[name]) if name in groups else [_option(name, hints[name], parameter.default)]

    @functools.wraps(command)
    def run(**options: Any) -> None:
        made = {
            name: group(**{field.name: options.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        _option(field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default)
        for field in fields(group)
    ]


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
