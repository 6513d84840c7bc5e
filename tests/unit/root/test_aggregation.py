from __future__ import annotations

import pytest
import torch

from backends.root.lower import sum_overlapping


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 17])
def test_sum_overlapping_against_a_loop(tokens: int) -> None:
    gated = torch.randn(tokens, 3, 5)
    expected = torch.zeros(tokens, 5)
    for i in range(tokens):
        for slot in range(3):
            fragment = i + 1 - slot  # the fragment that has token i in this slot
            if 0 <= fragment < tokens:
                expected[i] += gated[fragment, slot]
    torch.testing.assert_close(sum_overlapping(gated, centre=1), expected)
