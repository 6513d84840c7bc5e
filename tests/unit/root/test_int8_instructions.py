"""The instructions that products in int8 have, also where a variable keeps some from them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from backends.root.int8_instructions import int8_instructions

_PRINT = "from backends.root.int8_instructions import int8_instructions; print(int8_instructions())"


@pytest.mark.skipif(int8_instructions() != "VNNI", reason="there is no VNNI to be kept from products")
def test_products_that_may_not_use_vnni_count_as_those_of_avx2() -> None:
    """Weights that leave no room for two neighbours would give sums that are cut off."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run([sys.executable, "-c", _PRINT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "AVX2"
