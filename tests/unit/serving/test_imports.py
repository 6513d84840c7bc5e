"""What the server's processes load before they can answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backends.home import Home

HEAVY = ("torch._dynamo", "sympy", "transformers", "matplotlib", "ray", "fastapi")


@pytest.mark.parametrize("service", ["backends.engine.service", "backends.lower.service"])
def test_a_service_loads_neither_the_compiler_nor_what_builds_models(service: str) -> None:
    code = f"import sys, {service}; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_reading_a_root_does_not_load_the_compiler(tiny_home: Home) -> None:
    """It takes a second, on each restart, and leaves a folder behind."""
    root = str(tiny_home.root("tiny"))
    code = f"""
import sys
from pathlib import Path
from backends.root.store import RootFolder
root = RootFolder(Path({root!r}))
root.lower(), root.aggregation(), root.upper()
print("torch._dynamo" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
