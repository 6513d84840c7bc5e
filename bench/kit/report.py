"""What every bench prints and writes."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from builder.cpu_flags import FAST_BF16, FAST_INT8, cpu_flags

DEFAULT_SEED = 2024
_WIDEST = 1000
"""Columns of text: a narrow terminal breaks lines, but no figure is cut off."""


def parser(bench: str, question: str) -> argparse.ArgumentParser:
    """The options that all benchmarks share; a benchmark adds its own."""
    result = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=question)
    result.add_argument(
        "--quick", action="store_true", help="smaller sizes, the same figures, within a minute or a few on 2 cores"
    )
    result.add_argument("--json", type=Path, metavar="FILE", help="write the report there, and as .md beside it")
    result.add_argument("--seed", type=int, default=DEFAULT_SEED)
    return result


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_name(),
        "instructions": ", ".join(flag for flag in (*sorted(FAST_BF16), *FAST_INT8) if flag in cpu_flags()),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


@dataclass(frozen=True)
class Report:
    """One run of one benchmark: named figures, and the rows of its table."""

    bench: str
    settings: Mapping[str, Any]
    seed: int
    figures: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]
    machine: Mapping[str, Any] = field(default_factory=machine)
    arguments: Sequence[str] = ()

    def publish(self, json_path: Path | None) -> None:
        """Print the tables; with a path, write JSON there and the tables as Markdown beside it."""
        for title, rows in self._tables():
            print_table(title, rows)
        if json_path is not None:
            self.write(json_path)

    def write(self, json_path: Path) -> None:
        """Write what `publish` writes, and print nothing: a long run does so again and again."""
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(self._content(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        json_path.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def _content(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "arguments"}

    def markdown(self) -> str:
        command = f".venv/bin/python -m bench.{self.bench} {' '.join(self.arguments)}".strip()
        parts = [f"# bench.{self.bench}", f"```\n{command}\n```", *(_markdown(rows) for _, rows in self._tables())]
        parts += [f"{name}: {_pairs(values)}" for name, values in (("Settings", self.settings), ("On", self.machine))]
        return "\n\n".join(parts) + "\n"

    def _tables(self) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
        figures = [{"figure": name, "value": value} for name, value in self.figures.items()]
        return [*((self.bench, rows) for rows in _alike(self.rows)), ("figures", figures)]


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    Console(width=_WIDEST).print(_table(title, rows))


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title)
    for name in _columns(rows):
        table.add_column(name, justify="right" if isinstance(rows[0].get(name), int | float) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in _columns(rows)))
    return table


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = _columns(rows)
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _alike(rows: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Cut the rows of a bench of several parts where these have other columns than the ones before."""
    if not rows or not all("part" in row for row in rows):
        return [rows]
    return [list(of_part) for _, of_part in groupby(rows, key=tuple)]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case _:
            return str(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in values.items() if value is not None)


def _cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
