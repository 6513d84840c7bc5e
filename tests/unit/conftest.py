"""Fresh chance for every run; the seed is part of a test's name, so a failure shows it."""

from __future__ import annotations

import secrets

import pytest


@pytest.fixture(params=[secrets.randbits(32)], ids="seed={}".format)
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)
