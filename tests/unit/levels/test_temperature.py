"""Temperatures against a fine grid, and errors of calibration where they are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from builder.construct.tasks.calibration import (
    TEMPERATURES,
    calibration_error,
    confidences,
    fit_temperature,
    is_at_bound,
)


@pytest.mark.parametrize("true_temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("soft", [False, True])
def test_the_temperature_is_the_best_of_a_fine_grid(true_temperature: float, soft: bool) -> None:
    torch.manual_seed(1)
    logits = 3 * torch.randn(2000, 5)
    truth = torch.softmax(logits / true_temperature, dim=-1)
    targets = truth if soft else torch.multinomial(truth, 1)[:, 0]
    found = fit_temperature(logits, targets)
    grid = np.geomspace(*TEMPERATURES, 4000)
    wanted = targets.double() if soft else targets
    losses = [float(functional.cross_entropy(logits.double() / each, wanted)) for each in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.003)
    assert found == pytest.approx(true_temperature, rel=0.1)


def test_answers_that_are_all_wrong_have_a_temperature_at_its_bound() -> None:
    logits = torch.eye(4).repeat(50, 1)
    found = fit_temperature(logits, (torch.arange(4).repeat(50) + 1) % 4)
    assert found == pytest.approx(TEMPERATURES[1], rel=1e-3) and is_at_bound(found)


@pytest.mark.parametrize("gap", [1.0, 2.0, 8.0, 60.0])
@pytest.mark.parametrize("count", [20, 100, 1000])
def test_of_answers_that_are_all_right_the_next_may_be_wrong(gap: float, count: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = 0.1 * torch.rand(count, 4)
    logits[:, 0] += gap
    found = fit_temperature(logits, torch.zeros(count, dtype=torch.int64))
    assert confidences(logits, found).mean() == pytest.approx((count + 1) / (count + 2), abs=3e-3), f"seed {seed}"
    half_as_sure = torch.cat([logits[:, :1] / 2, logits[:, 1:]], dim=1)
    assert confidences(half_as_sure, found).mean() < (count + 1) / (count + 2) - 0.02, f"seed {seed}"


def test_right_answers_of_which_few_are_less_sure_leave_doubt_of_others(seed: int) -> None:
    """Gaps of a half and more, eight in the mean: most answers are surer than one with a gap of two."""
    gaps = torch.from_numpy(np.random.default_rng(seed).gamma(2, 4, 100)).clamp(min=0.5)
    logits = torch.cat([gaps[:, None], torch.zeros(100, 3)], dim=1)
    found = fit_temperature(logits, torch.zeros(100, dtype=torch.int64))
    assert confidences(torch.tensor([[2.0, 0.0, 0.0, 0.0]]), found)[0] < 0.95, f"seed {seed}"
    assert not is_at_bound(found), f"seed {seed}"


def test_no_answers_have_a_temperature_at_its_bound() -> None:
    assert is_at_bound(fit_temperature(torch.empty(0, 4), torch.empty(0, dtype=torch.int64)))


def test_answers_that_are_all_alike_have_a_temperature_at_its_bound() -> None:
    alike = fit_temperature(torch.ones(100, 3), torch.arange(100) % 3)
    assert is_at_bound(alike) and is_at_bound(TEMPERATURES[0]) and not is_at_bound(1.0)


def test_the_temperature_changes_no_order() -> None:
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    assert list(np.argsort(confidences(logits, 0.5))) == list(np.argsort(confidences(logits, 4.0))) == [1, 0, 2]


def test_the_error_is_the_distance_of_confidence_and_truth() -> None:
    confidence = np.array([0.95] * 10 + [0.65] * 10)
    is_right = np.array([True] * 9 + [False] + [True] * 5 + [False] * 5)
    assert calibration_error(confidence, is_right) == pytest.approx((0.05 + 0.15) / 2)
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0
