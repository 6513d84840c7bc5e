"""Reads a tutorial as somebody does who follows it word by word: files to write, commands to give, what they print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"(?:Write `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<body>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Command:
    line: str
    prints: tuple[str, ...]


@dataclass(frozen=True)
class NewFile:
    name: str
    content: str


def read_tutorial(path: Path, replaced: Mapping[str, str]) -> list[Command | NewFile]:
    """Return the steps of a tutorial in their order, with names and addresses `replaced`."""
    text = path.read_text(encoding="utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    steps: list[Command | NewFile] = []
    for block in _BLOCK.finditer(text):
        if block["kind"] == "console":
            steps += _commands(block["body"])
        elif block["file"]:
            steps.append(NewFile(block["file"], block["body"]))
    return steps


def _commands(body: str) -> list[Command]:
    commands = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    return [Command(lines[0], tuple(lines[1:])) for lines in (command.splitlines() for command in commands)]


def names_in_table(prints: tuple[str, ...]) -> list[str]:
    """Return the names in a printed table: its heads, or the first column of a table of two columns without heads."""
    heads = [_cells(line, "┃") for line in prints if line.startswith("┃")]
    if heads:
        return heads[0]
    rows = [_cells(line, "│") for line in prints if line.startswith("│")]
    return [row[0] for row in rows if len(row) == 2]


def _cells(line: str, border: str) -> list[str]:
    return [cell.strip() for cell in line.strip(border).split(border)]
