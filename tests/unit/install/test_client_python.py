"""The SDK runs on Python 3.9, whatever Python the tests run on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import PROJECT

PACKAGE = PROJECT / "clients" / "hplm_client"
FILES = sorted(PACKAGE.rglob("*.py"))
NEWER = {
    "match": "match x:\n    case 1: pass\n",
    "zip": "zip([], [], strict=True)\n",
    "dataclass": "from dataclasses import dataclass\n@dataclass(kw_only=True)\nclass A: pass\n",
    "timeout": "import asyncio\nasyncio.timeout(1)\n",
}


def newest_python_needed(path: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("vermin"), "--target=3.9-", "--no-tips", "--violations", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_its_syntax_is_that_of_python_39(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    assert "from __future__ import annotations" in path.read_text(encoding="utf-8") or path.name == "__init__.py"


def test_it_calls_nothing_that_python_39_has_not() -> None:
    done = newest_python_needed(PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", NEWER.values(), ids=NEWER)
def test_newer_programs_are_found(program: str, tmp_path: Path) -> None:
    (tmp_path / "newer.py").write_text(program)
    assert newest_python_needed(tmp_path / "newer.py").returncode != 0


def test_its_types_are_not_evaluated_at_runtime_as_unions() -> None:
    """Python 3.9 has no `A | B` of classes; in annotations it is never evaluated, elsewhere nothing else finds it."""
    found = []
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        annotations = {
            id(part)
            for node in ast.walk(tree)
            for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
            if note is not None
            for part in ast.walk(note)
        }
        found += [
            f"{path.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in annotations
        ]
    assert found == []
