from __future__ import annotations

import pytest

from seeds import SEED


@pytest.fixture(params=[SEED], ids="seed={}".format)
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, as a part of the test's name, so that a failure shows it."""
    return int(request.param)
