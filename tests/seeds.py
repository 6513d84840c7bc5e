"""The seed of a test run: the same every time, unless `$HPLM_TEST_SEED` is a number or the word `random`."""

from __future__ import annotations

import os
import secrets

VARIABLE = "HPLM_TEST_SEED"
_DEFAULT = "20260405"

if os.environ.setdefault(VARIABLE, _DEFAULT) == "random":
    os.environ[VARIABLE] = str(secrets.randbits(32))  # parallel workers inherit it
SEED = int(os.environ[VARIABLE])
