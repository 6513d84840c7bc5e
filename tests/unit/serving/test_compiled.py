"""How many compiled products a process keeps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from backends.compiled import _KEPT, _VARIABLES, limit_compiled_products


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = _VARIABLES
    monkeypatch.setenv(one, "7")
    monkeypatch.setenv(other, "")  # so that what follows is undone at the end
    monkeypatch.delenv(other)
    limit_compiled_products()
    assert (os.environ[one], os.environ[other]) == ("7", _KEPT)


_PRODUCTS = """
import sys
from backends.compiled import limit_compiled_products
if sys.argv[1] == "few":
    limit_compiled_products()
import torch
from backends.root.packed import cpu_multiplies_bf16

def resident_mb():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 1e6

if not cpu_multiplies_bf16():
    sys.exit(77)
states, weights = torch.zeros(1600, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
before_mb = resident_mb()
with torch.inference_mode():
    for rows in range(100, 1500):
        torch.nn.functional.linear(states[:rows], weights)
print(resident_mb() - before_mb)
"""


@pytest.mark.long
def test_fewer_are_kept_where_a_process_asks_for_it() -> None:
    """1,400 shapes are computed."""

    def grown_mb(which: str) -> float:
        environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
        done = subprocess.run(
            [sys.executable, "-c", _PRODUCTS, which], capture_output=True, text=True, env=environment, timeout=300
        )
        if done.returncode == 77:
            pytest.skip("this CPU compiles no products in bf16")
        assert not done.returncode, done.stderr
        return float(done.stdout)

    assert grown_mb("few") < 0.7 * grown_mb("all")
