from __future__ import annotations

import pytest
import torch

from backends.root.lower import sum_overlapping


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 17])
def test_sum_overlapping_against_a_loop(tokens: int, n: int) -> None:
    gated = torch.randn(tokens, n, 5)
    expected = torch.zeros(tokens, 5)
    for i in range(tokens):
        for slot in range(n):
            fragment = i + n // 2 - slot  # the fragment that has token i in this slot
            if 0 <= fragment < tokens:
                expected[i] += gated[fragment, slot]
    torch.testing.assert_close(sum_overlapping(gated, centre=n // 2), expected)
