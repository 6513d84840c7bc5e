"""Writes the reference of the command line, the SDK and the settings from the code: `make reference`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import typer
from pydantic_core import to_json

import hplm_client
from builder.settings.hplm import TuneSettings
from cli import exit_codes
from cli.app import app
from cli.export import export

HEAD = "<!-- Written by `make reference` from the code; do not edit. -->\n"
EXPORT_GROUPS = {
    "device": "Device",
    "lower": "Lower model",
    "batch": "Batches",
    "mode": "Mode",
    "waiting": "Waiting and rejecting",
    "access": "Access",
    "traffic": "Recording traffic",
}
"""Titles of the groups of its options, as its signature names them."""
VARIABLES = {
    "HPLM_HOME": "the home of every command, and of a server whose repository lies elsewhere",
    "HPLM_POLICY": "the policy of one run of the server; goes before the export's",
    "HPLM_AUTH": "who may ask, for one run of the server: `off` or `tokens`; goes before the export's",
    "HPLM_RECORD_TRAFFIC": "whether one run of the server records its traffic: `1` or `0`; goes before the export's",
    "HPLM_ROOTS": "roots that one run of the server loads at its start, set by `hplm fleet apply`; without it all",
    "HPLM_INSECURE": "`1`: `hplm serve` and `hplm fleet serve` listen beyond this machine without tokens",
    "HPLM_REGISTRY_URL": "the [registry](../how-to/use-postgresql.md) of every command, and of a server; without it "
    "the home's own file",
    "HPLM_LOCAL": "a folder of this machine's own for `hplm fleet`, where machines share a home or it is read-only",
    "HPLM_URL": "the server of `hplm infer`, of `hplm loadtest`, of `HplmClient()` and of Locust users",
    "HPLM_TOKEN": "the token of `HplmClient()`, of `hplm infer` and of load tests",
    "HPLM_TOKEN_FILE": "a file with that token, where HPLM_TOKEN is not set",
    "HPLM_CA": "a file with the authorities that `HplmClient()` trusts; encrypts its connection",
    "HPLM_CERT": "a file with the client's own certificate",
    "HPLM_KEY": "a file with its key",
    "HPLM_TIMEOUT": "the timeout of `HplmClient()`: 30s, 500ms, or seconds",
    "HPLM_DEADLINE": "the deadline of `HplmClient()`: 300ms, 2s, or milliseconds",
}
TUNING = {
    "recipe": "which adapters an hPLM gets; a file names only what it replaces",
    "pooling": "what the head reads: `mean` of all tokens, or `cls`",
    "epochs": "how often each text is met; the best epoch is kept. With a teacher the default is 2",
    "rows_per_batch": "texts of a step",
    "learning_rate": "of the adapters, at most 1; it falls to nothing in the last epoch",
    "head_learning_rate": "of the head; without it that of the adapters",
    "weight_decay": "0 to below 1",
    "label_smoothing": "0 to below 1",
    "dropout": "of what the head reads, 0 to below 1",
    "class_weights": "`balanced`: rare classes count more",
    "patience": "epochs without a better dev result that end the tuning; without it none do",
    "ema_decay": "above 0: a running average of the weights is kept instead of the last ones",
    "distil_weight": "how much a teacher's answers count against the labels, 0 to 1",
    "states_weight": "how much it counts besides that the head reads what the teacher's reads, 0 to 1000",
    "temperature": "what a teacher's answers are softened by",
    "seed": "of order, dropout and first weights",
}


def main(folder: Path) -> None:
    for name, content in (("cli.md", command_line()), ("sdk.md", sdk()), ("settings.md", settings())):
        (folder / name).write_text(f"{HEAD}\n{content.strip()}\n", encoding="utf-8")


def command_line() -> str:
    commands = [_command(path, command) for path, command in _commands(typer.main.get_command(app))]
    errors = (
        "An error is one line on stderr. With `--json` it is "
        '`{"error": {"code", "message", "hint", "exit_code"}}`; of a rejection also its `reason` and `retry_after_ms` '
        "([errors](errors.md)). In a pipe, tables are columns separated by TABs."
    )
    return "\n\n".join(["# Command line", "Every command has `--help`.", errors, _exit_codes(), *commands])


def sdk() -> str:
    parts = ["# SDK", "`from hplm_client import …`; [the guide](../how-to/ask-from-python.md) shows how they are used."]
    for name in hplm_client.__all__:
        thing = getattr(hplm_client, name)
        parts.append(f"## {name}")
        parts.append(_code(f"{name}{_signature(thing)}"))
        parts.append(_doc(thing))
        for method in _methods(thing):
            parts.append(f"### {name}.{method.__name__}")
            parts.append(_code(f"{method.__name__}{_signature(method)}"))
            parts.append(_doc(method))
    return "\n\n".join(part for part in parts if part)


def settings() -> str:
    parts = [
        "# Settings",
        "## hplm export",
        "What a server runs with. `hplm export` prints what changed; a server reads it at its start.",
    ]
    command = next(command for path, command in _commands(typer.main.get_command(app)) if path == "export")
    options = {parameter.name: parameter for parameter in command.params}
    for group, kind in get_type_hints(export).items():
        if group not in ("home", "return"):
            rows = [_option_row(options[name]) for name in get_type_hints(kind)]
            parts.append(f"### {EXPORT_GROUPS[group]}\n\n{_table(('option', 'default', 'says'), rows)}")
    parts.append("## Environment")
    parts.append(_table(("variable", "is"), [(f"`{name}`", says) for name, says in VARIABLES.items()]))
    parts.append("## Tuning")
    parts.append("Settings of `hplm create` and `hplm update`, for `--settings FILE` (JSON).")
    rows = [(f"`{field.name}`", _default(field.default), TUNING[field.name]) for field in fields(TuneSettings)]
    parts.append(_table(("setting", "default", "says"), rows))
    return "\n\n".join(parts)


def _exit_codes() -> str:
    source = inspect.getsource(exit_codes)
    found = re.findall(r"^([A-Z_]+) = (\d+)(?:\n\"\"\"(.*?)\"\"\")?", source, re.MULTILINE | re.DOTALL)
    rows = [("0", "done")] + [(number, says or name.lower().replace("_", " ")) for name, number, says in found]
    return _table(("exit code", "means"), rows)


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _commands(below, f"{path} {name}".strip())
    elif not command.hidden:
        yield path, command


def _command(path: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter not in arguments and not parameter.hidden]
    usage = " ".join(["hplm", path, *map(_argument, arguments), "[OPTIONS]"])
    text = "\n\n".join(_prose(part) for part in (command.help, command.epilog) if part)
    rows = [_option_row(parameter) for parameter in options if parameter.name != "help"]
    return f"## hplm {path}\n\n{_code(usage)}\n\n{text}\n\n{_table(('option', 'default', 'says'), rows)}".strip()


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _option_row(parameter: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = (
        "" if default is None or callable(default) or default in ((), []) else f"`{getattr(default, 'value', default)}`"
    )
    if isinstance(default, bool):
        shown = "yes" if default else "no"
    says = _plain(parameter.help or "") + (f" Variable: `{parameter.envvar}`." if parameter.envvar else "")
    return names, "required" if parameter.required else shown, says


def _methods(thing: Any) -> Iterator[Any]:
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    for owner in reversed(thing.__mro__):
        if not owner.__module__.startswith("hplm_client"):
            continue
        for name, member in vars(owner).items():
            if inspect.isfunction(member) and not name.startswith("_") and getattr(thing, name) is member:
                yield member


def _signature(thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return ""
    return str(inspect.signature(thing)).replace("'", "").replace("self, ", "").replace("(self)", "()")


def _doc(thing: Any) -> str:
    doc = inspect.getdoc(thing) or ""
    return "" if doc.startswith(f"{getattr(thing, '__name__', '')}(") else doc


def _default(value: object) -> str:
    """Write a default as a settings file has it."""
    return "" if value is None else f"`{to_json(value).decode()}`"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    return f"```\n{text}\n```"


def _prose(text: str) -> str:
    """Fence the paragraphs whose lines Typer keeps: tables and examples."""
    paragraphs = [paragraph.strip("\n") for paragraph in text.split("\n\n")]
    return "\n\n".join(_code(_plain(one)) if one.startswith("\b") else _plain(one) for one in paragraphs)


def _plain(text: str) -> str:
    """Without what Typer reads as markup."""
    return text.replace("\b", "").replace("\\[", "[").strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
