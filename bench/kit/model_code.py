"""The product's Triton models with code of a bench behind their own."""

from __future__ import annotations

from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


def append_to_model(model: Path, text: str) -> None:
    """Append code to the model in a folder; it may import `bench`, which is not installed."""
    path = model / "1" / "model.py"
    own = path.read_text(encoding="utf-8")
    path.write_text(f"{own}\n\nimport sys\n\nsys.path.append({str(_REPOSITORY)!r})\n{text}", encoding="utf-8")
