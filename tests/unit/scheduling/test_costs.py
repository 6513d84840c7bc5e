"""Fitting, correcting and storing cost models."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.scheduling.cost_model import OPTIMISTIC, BatchShape, CostModel
from backends.scheduling.cost_profile import (
    CostProfile,
    ForeignProfileError,
    Measured,
    device_name,
    profile_for,
    read_profile,
    write_profile,
)
from backends.scheduling.estimator import Estimator, LiveCosts, Sample, fit, mean_absolute_percentage_error

TRUE = CostModel(1500.0, 20.0, 55.0, 0.05, 90.0)
MEASURED = Measured("f" * 32, "A device", "bf16", "ragged", 2)
PROFILE = CostProfile(TRUE, MEASURED, "2.13.0", 120, 4.2)


def shapes(chance: random.Random, count: int) -> list[BatchShape]:
    found = []
    for _ in range(count):
        lengths = [chance.randint(3, 100) for _ in range(chance.randint(1, 64))]
        squares = sum(length * length for length in lengths)
        found.append(BatchShape(len(lengths), sum(lengths), squares, chance.randint(1, len(lengths))))
    return found


def noisy(chance: random.Random, model: CostModel, count: int, spread: float = 0.05) -> list[Sample]:
    return [Sample(shape, model.predict_us(shape) * chance.gauss(1, spread)) for shape in shapes(chance, count)]


def test_a_fit_predicts_what_it_has_not_seen() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    model = fit(noisy(chance, TRUE, 120))
    assert mean_absolute_percentage_error(model, noisy(chance, TRUE, 200, spread=0)) < 4, f"seed {seed}"


def test_slow_moments_do_not_spoil_a_fit() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    samples = noisy(chance, TRUE, 120)
    spoiled = [replace(s, measured_us=s.measured_us * 10) if n % 6 == 0 else s for n, s in enumerate(samples)]
    error = mean_absolute_percentage_error(fit(spoiled), noisy(chance, TRUE, 200, spread=0))
    assert error < 10, f"seed {seed}: {error}"


def test_no_coefficient_is_negative() -> None:
    """Whatever was measured, more work is never predicted to take less time."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for _ in range(20):
        samples = [Sample(shape, chance.uniform(100, 100_000)) for shape in shapes(chance, 12)]
        assert min(fit(samples).to_json().values()) >= 0, f"seed {seed}"


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 5"):
        fit(noisy(random.Random(1), TRUE, 4))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match="per_token_us"):
        replace(TRUE, per_token_us=wrong)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_model_that_is_wrong_by_a_factor_recovers(factor: float) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    costs = LiveCosts(TRUE.scaled(factor))
    for sample in noisy(chance, TRUE, 200):
        costs.observe(sample.shape, sample.measured_us)
    ratios = [costs.predict_us(shape) / TRUE.predict_us(shape) for shape in shapes(chance, 50)]
    assert min(ratios) > 0.93 and max(ratios) < 1.07, f"seed {seed}"


@pytest.mark.parametrize(("slow_batches", "at_most"), [(1, 1.3), (3, 2.1)])
def test_a_slow_moment_moves_the_estimate_little_and_is_forgotten(slow_batches: int, at_most: float) -> None:
    estimator = Estimator()
    for _ in range(60):
        estimator.observe(1000, 1000)
    for _ in range(slow_batches):
        estimator.observe(1000, 1_000_000)
    assert 1.0 < estimator.typical <= at_most and estimator.safety > 1.25
    for _ in range(60):
        estimator.observe(1000, 1000)
    assert estimator.typical == pytest.approx(1.0, abs=0.01) and estimator.safety < 1.05


@pytest.mark.parametrize("level", [1.6, 0.7])
def test_a_new_level_is_covered_by_safety_at_once_and_learned_soon(level: float, seed: int) -> None:
    rng, estimator = random.Random(seed), Estimator()
    for now, then in ((1.0, level), (level, 1.0)):
        for _ in range(60):
            estimator.observe(1000, 1000 * now * rng.uniform(0.95, 1.05))
        for _ in range(2):
            estimator.observe(1000, 1000 * then * rng.uniform(0.95, 1.05))
        assert estimator.typical * estimator.safety > then
        for _ in range(20):
            estimator.observe(1000, 1000 * then * rng.uniform(0.95, 1.05))
        assert estimator.typical == pytest.approx(then, rel=0.06)


def test_safety_covers_what_few_batches_exceed(seed: int) -> None:
    rng, estimator, exceeded = random.Random(seed), Estimator(), 0
    for number in range(1000):
        took_us = 1000 * rng.lognormvariate(0.0, 0.25)
        exceeded += number > 50 and took_us > 1000 * estimator.typical * estimator.safety
        estimator.observe(1000, took_us)
    assert estimator.typical == pytest.approx(1.03, rel=0.3) and exceeded < 50


def test_a_long_batch_counts_more_than_a_short_one() -> None:
    estimator = Estimator()
    for number in range(400):
        estimator.observe(*((100, 200) if number % 2 else (900, 990)))
    assert estimator.typical == pytest.approx(1.2, abs=0.1)


def test_estimates_are_bounded_and_nonsense_is_ignored() -> None:
    estimator = Estimator()
    for _ in range(100):
        estimator.observe(0.0, 1.0)
        estimator.observe(1.0, 0.0)
    assert estimator.typical == estimator.safety == 1.0
    estimator.observe(1000, 1e12)
    assert estimator.typical == 1.0, "the first batch warms the machine up"
    estimator.observe(1000, 1e12)
    assert estimator.typical == 2.0 and estimator.safety <= 2.0


def test_a_slow_first_batch_keeps_no_later_row_out() -> None:
    estimator = Estimator()
    estimator.observe(64_000, 320_000)
    for _ in range(8):
        estimator.observe(5_000, 5_000)
    assert estimator.typical * estimator.safety == pytest.approx(1.0)


def test_a_new_model_is_as_uncertain_as_the_one_before() -> None:
    estimator = Estimator()
    for number in range(40):
        estimator.observe(1000, 3000 if number % 2 else 5000)
    before = estimator.safety
    estimator.restart()
    assert estimator.typical == 1.0 and estimator.safety == pytest.approx(before)


def test_the_first_batches_count_more_than_later_ones() -> None:
    estimator = Estimator()
    for _ in range(4):
        estimator.observe(1000, 2000)
    assert estimator.typical == pytest.approx(1.75, rel=0.01)


def learn(costs: LiveCosts, shape: BatchShape, measured_us: float) -> None:
    costs.observe(shape, measured_us)
    if (model := costs.fit_if_due()) is not None:
        costs.adopt(model)


def test_without_a_profile_the_model_is_learned_from_live_batches() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    costs = LiveCosts()
    assert costs.model == OPTIMISTIC
    for sample in noisy(chance, TRUE, 300):
        learn(costs, sample.shape, sample.measured_us)
    errors = [abs(costs.predict_us(shape) / TRUE.predict_us(shape) - 1) for shape in shapes(chance, 100)]
    assert sum(errors) / len(errors) < 0.1, f"seed {seed}"


def test_batches_all_alike_teach_nothing_absurd_about_others() -> None:
    """All batches hold one row; a batch of 64 must still be predicted to take longer than one, and no age."""
    costs = LiveCosts()
    one, many = BatchShape(1, 20, 400, 1), BatchShape(64, 64 * 20, 64 * 400, 64)
    for _ in range(300):
        learn(costs, one, 5000.0)
    assert costs.predict_us(one) == pytest.approx(5000, rel=0.05)
    assert 5000 <= costs.predict_us(many) <= 64 * 5000 * 1.1


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_profile(tmp_path / "mini", PROFILE)
    assert read_profile(tmp_path / "mini") == PROFILE
    assert profile_for(tmp_path / "mini", MEASURED) == PROFILE


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": "Another"}, "with device 'A device', not 'Another'"),
        ({"dtype": "fp32"}, "with dtype 'bf16', not 'fp32'"),
        ({"root_fingerprint": "0" * 32}, "with root fingerprint"),
        ({"layout": "padded"}, "with layout 'ragged', not 'padded'"),
    ],
)
def test_a_profile_of_something_else_is_refused(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    write_profile(tmp_path, PROFILE)
    with pytest.raises(ForeignProfileError, match=message) as caught:
        profile_for(tmp_path, replace(MEASURED, **changed))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_number_of_threads_counts_on_a_processor_only(tmp_path: Path) -> None:
    write_profile(tmp_path, PROFILE)
    assert profile_for(tmp_path, replace(MEASURED, threads=8)) == PROFILE
    here = replace(MEASURED, device=device_name(torch.device("cpu")))
    write_profile(tmp_path, replace(PROFILE, measured=here))
    with pytest.raises(ForeignProfileError, match="with threads 2, not 8"):
        profile_for(tmp_path, replace(here, threads=8))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"model": 3'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_profile(tmp_path, PROFILE)
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        read_profile(tmp_path)
