import numpy as np
import pytest

from seeds import SEED


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)
