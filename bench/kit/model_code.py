"""Triton models whose code imports `bench`, which is no part of the installed product."""

from __future__ import annotations

from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


def with_bench(code: str) -> str:
    """Let a model's code find `bench`."""
    return f"import sys\n\nsys.path.append({str(_REPOSITORY)!r})\n\n{code}"


def append_to_model(model: Path, code: str) -> None:
    """Append code to one of the product's models; it may import `bench`."""
    path = model / "1" / "model.py"
    own = path.read_text(encoding="utf-8")
    path.write_text(f"{own}\n\n{with_bench(code)}", encoding="utf-8")
