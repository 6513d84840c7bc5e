"""Early heads: that they are the best of their kind, and what they learn from."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from backends.errors import TrainingDataError
from builder.levels import early_head
from builder.levels.early_head import HeadData, fit_early_head, fit_number_head


def lesson(rows: int = 600, width: int = 12, classes: int = 4, labelled: bool = True) -> HeadData:
    torch.manual_seed(3)
    states = torch.randn(rows, width) * torch.logspace(-2, 2, width) + 5
    true = torch.randn(classes, width) / torch.logspace(-2, 2, width)
    answers = (states - 5) @ true.T * 2 + torch.randn(rows, classes)
    labels = answers.argmax(dim=-1) if labelled else torch.full((rows,), -1)
    return HeadData(states, answers, labels)


def test_the_head_repeats_most_answers_of_features_of_any_size() -> None:
    given = lesson()
    head = fit_early_head(given)
    agreeing = head.logits(given.states).argmax(dim=-1) == given.answers.argmax(dim=-1)
    assert agreeing.float().mean() > 0.85


def test_no_head_near_it_has_a_smaller_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    given = lesson()
    monkeypatch.setattr(early_head, "_PENALTIES", (1e-3,))
    head = fit_early_head(given)
    deviation, mean = given.states.double().std(dim=0), given.states.double().mean(dim=0)

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> float:
        scaled = weight * deviation
        logits = (given.states.double() - mean) @ weight.T + bias
        return float(functional.cross_entropy(logits, given.wanted) + 1e-3 * scaled.square().sum())

    weight = head.weight.double()
    bias = head.bias.double() + weight @ mean
    least = loss(weight, bias)
    for _ in range(50):
        nearby = weight + 0.01 * torch.randn_like(weight) / deviation
        assert loss(nearby, bias) > least
        assert loss(weight, bias + 0.01 * torch.randn(len(bias))) > least - 1e-9


def test_labels_count_as_much_as_answers_and_none_count_nothing() -> None:
    answers = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    wanted = HeadData(torch.zeros(2, 3), answers, torch.tensor([1, -1])).wanted
    assert wanted.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_a_feature_without_spread_does_not_matter() -> None:
    given = lesson()
    constant = HeadData(torch.cat([given.states, torch.full((600, 1), 3.0)], dim=1), given.answers, given.labels)
    head = fit_early_head(constant)
    assert torch.isfinite(head.weight).all()
    assert torch.allclose(head.logits(constant.states), fit_early_head(given).logits(given.states), atol=0.05)


def test_a_head_for_numbers_says_how_far_it_is_from_the_full_answer() -> None:
    """One of the features says how large the part of an answer is that no head could find."""
    torch.manual_seed(5)
    states = torch.randn(4_000, 10)
    answers = 500 + 100 * (states[:, 1] + torch.exp(0.7 * states[:, 0] - 1.5) * torch.randn(4_000))
    head, scale = fit_number_head(states[:2_000], answers[:2_000])
    assert scale == pytest.approx(float(answers[:2_000].std()), rel=1e-6)
    values, log_variances = head.logits(states[2_000:]).T
    errors = (values - answers[2_000:]) / scale
    for of_kind in log_variances.argsort().chunk(4):  # from the surest on
        said, true = float(log_variances[of_kind].exp().mean()), float(errors[of_kind].square().mean())
        assert 0.5 < said / true < 2, (said, true)
    surest = log_variances.argsort()[:500]
    assert float(errors[surest].abs().mean()) < 0.5 * float(errors.abs().mean())


def test_numbers_that_are_all_alike_teach_nothing() -> None:
    with pytest.raises(TrainingDataError, match="the same number"):
        fit_number_head(torch.randn(50, 4), torch.full((50,), 3.0))


def test_numbers_that_a_head_finds_exactly_are_sure_and_finite() -> None:
    torch.manual_seed(6)
    states = torch.randn(400, 6)
    head, _ = fit_number_head(states, 7 * states[:, 2])
    values, log_variances = head.logits(states).T
    assert torch.allclose(values, 7 * states[:, 2], atol=0.01)
    assert torch.isfinite(log_variances).all() and float(log_variances.max()) < -10
