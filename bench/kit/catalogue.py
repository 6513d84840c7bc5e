"""Which benches there are: the modules directly under `bench/`, each with one question."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from bench.kit.entry import Bench

_FOLDER = Path(__file__).parents[1]


def bench_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.py") if not path.stem.startswith("_"))


def question_of(name: str) -> str:
    """Read from the file, without importing what the bench needs."""
    docstring = ast.get_docstring(ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def bench_named(name: str) -> Bench:
    found = getattr(import_module(f"bench.{name}"), name)
    assert isinstance(found, Bench), f"bench.{name} defines no bench of its own name"
    return found
