"""What the server's processes load before they can answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch._dynamo", "sympy", "transformers", "matplotlib", "ray", "fastapi")


@pytest.mark.parametrize("service", ["backends.engine.service", "backends.lower.service"])
def test_a_service_loads_neither_the_compiler_nor_what_builds_models(service: str) -> None:
    code = f"import sys, {service}; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
