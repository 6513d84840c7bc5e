"""Pruned words in a selection: tried where it is worth it, certified as thresholds are, and served as certified."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, read_ladder
from backends.engine.exits import NEVER
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json
from builder.construct.hplm.trainable import Indices
from builder.levels.answers import StepAnswers
from builder.levels.candidate import Candidate, Trial
from builder.levels.certificate import THRESHOLDS, certify
from builder.levels.guarantee import Each
from builder.levels.paired_answers import LabelPairs
from builder.levels.profile import read_profile
from builder.levels.served import PrunedRows
from builder.levels.target import Target
from builder.levels.word_pruning import LEAST_SAVED, Pair, WordPruning
from selection_cases import select, written

STEP = EarlyStep(2, Head(torch.zeros(3, 4), torch.zeros(3)), 1.0, NEVER)
NUM_ROWS, NUM_FITS, LAYERS = 4000, 800, 6
FITS, CERTIFIES = np.arange(NUM_FITS), np.arange(NUM_FITS, NUM_ROWS)
LENGTHS = np.full(NUM_ROWS, 20)


def drawn(seed: int, early_noise: float = 1.0) -> LabelPairs:
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(3, size=NUM_ROWS))
    sure = torch.from_numpy(rng.uniform(0, 6, NUM_ROWS))[:, None] * torch.nn.functional.one_hot(labels, 3)

    def step(noise: float) -> StepAnswers:
        logits = (sure + noise * torch.from_numpy(rng.normal(size=(NUM_ROWS, 3)))).float()
        return StepAnswers(list(logits[:, None]), list(labels[:, None]), (logits.argmax(-1) == labels).numpy())

    return LabelPairs(step(early_noise), step(0.5), has_labels=True)


class Prunes:
    """Keeps a share of all tokens, and moves the full answers by so much."""

    def __init__(self, pairs: LabelPairs, kept: float, noise: float) -> None:
        self._pairs, self._kept, self._noise = pairs, kept, noise
        self.tried: list[tuple[float, int]] = []

    def __call__(self, step: EarlyStep, alpha: float, rows: Indices) -> PrunedRows:
        self.tried.append((alpha, len(rows)))
        rng = np.random.default_rng(round(1000 * alpha))
        noise = alpha * self._noise * torch.from_numpy(rng.normal(size=(NUM_ROWS, 1, 3))).float()
        logits = [self._pairs.full.logits[row] + noise[row] for row in rows.tolist()]
        return PrunedRows(logits, np.rint((1 - alpha * (1 - self._kept)) * LENGTHS[rows]).astype(np.int64))


def tried(prunes: Prunes, pairs: LabelPairs, target: Target, num_certifying: int = len(CERTIFIES)) -> list[Pair]:
    return WordPruning(prunes, LENGTHS, LAYERS, FITS, target).tried([(STEP, pairs)], num_certifying)


def test_pruning_that_changes_little_is_certified_with_what_it_changes() -> None:
    pairs, target = drawn(seed=1), Target.of(max_drop=2)
    prunes = Prunes(pairs, kept=0.2, noise=0.2)
    candidates = tried(prunes, pairs, target)
    assert [answers.pruning is not None for _, answers in candidates] == [False, True]
    assert prunes.tried[-1][1] == NUM_ROWS and all(count == NUM_FITS for _, count in prunes.tried[:-1])
    trial = Trial(target, len(candidates), FITS, CERTIFIES, LAYERS)
    plain, pruned = (Candidate(*pair, trial) for pair in candidates)
    assert plain.certificate is not None and pruned.certificate is not None
    assert plain.mean_work == plain.mean_depth and plain.alpha is None
    going_on = 1 - pruned.certificate.exit_share
    assert pruned.mean_work == pytest.approx(1 / 3 + going_on * 2 / 3 * pruned.kept_tokens)
    assert pruned.certified["alpha"] == pruned.alpha == prunes.tried[-1][0]
    assert pruned.certified["kept_tokens"] == pytest.approx(pruned.kept_tokens, abs=1e-4) and pruned.kept_tokens < 1
    leaves = candidates[1][1].confidence(pruned.ladder({}).early.temperature)[CERTIFIES] >= pruned.certificate.threshold
    answers = candidates[1][1]
    assert isinstance(answers, LabelPairs) and answers.pruned is not None
    going_right = answers.pruned.answers.is_right[CERTIFIES]
    is_right = np.where(leaves, pairs.early.is_right[CERTIFIES], going_right)
    assert pruned.certificate.balance.harms == int((pairs.full.is_right[CERTIFIES] & ~is_right).sum())
    assert pruned.certificate.bound <= 0.02 and pruned.ladder({}).pruning == answers.pruning


def test_a_sequence_may_begin_at_a_threshold_that_was_chosen_before() -> None:
    """Against a loop over thresholds, with SciPy's binomial distribution."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(60):
        rows, first = int(rng.integers(200, 1500)), THRESHOLDS[int(rng.integers(150))]
        confidence = 1 - 0.5 * rng.random(rows) ** rng.uniform(1, 6)
        leaving, staying = rng.random(rows) < 0.1 * (1 - confidence), rng.random(rows) < rng.uniform(0, 0.04)
        expected = None
        for threshold in THRESHOLDS[THRESHOLDS.index(first) :]:
            leaves = confidence >= threshold
            if stats.binom.cdf(int(np.where(leaves, leaving, staying).sum()), rows, 0.02) > 0.1:
                break
            expected = threshold
        found = certify(confidence, leaving, 0.02, Each(0.1), staying, first=first)
        assert (None if found is None else found.threshold) == expected, f"seed {seed}"
        outcomes.add(expected)
    assert None in outcomes and len(outcomes) > 2, f"seed {seed}"


def test_what_loses_too_much_seldom_passes() -> None:
    """Rows lose more than the tolerance at every threshold, so each that passes is a mistake."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    tenants, mistakes = 400, 0
    for _ in range(tenants):
        confidence, lost = 1 - 0.5 * rng.random(600), rng.random(600) < 0.0202
        first = THRESHOLDS[int(rng.integers(200))]
        mistakes += certify(confidence, lost, 0.02, Each(0.1), lost, first=first) is not None
    assert mistakes / tenants <= 0.1 + 2 * (0.09 / tenants) ** 0.5, f"seed {seed}"


@pytest.mark.parametrize(
    ("kept", "noise", "target", "num_certifying"),
    [
        pytest.param(0.2, 6.0, Target.of(max_drop=1), 3200, id="answers change"),
        pytest.param(0.98, 0.0, Target.of(max_drop=2), 3200, id="hardly a word goes"),
        pytest.param(0.2, 0.0, Target.of(max_drop=2, guarantee="fleet"), 3200, id="losses need not grow"),
        pytest.param(0.2, 0.0, Target.of(max_drop=2), 140, id="half the risk takes more rows"),
    ],
)
def test_no_pruning_is_tried_where_it_is_not_worth_it(
    kept: float, noise: float, target: Target, num_certifying: int
) -> None:
    """Keep the risk whole: a try that is not worth it would divide it for nothing."""
    pairs = drawn(seed=2)
    assert tried(Prunes(pairs, kept, noise), pairs, target, num_certifying) == [(STEP, pairs)]


@pytest.mark.parametrize("target", [Target.of(agreement=0.95), Target.of(target_accuracy=0.9)])
def test_every_target_counts_what_pruned_rows_lose(target: Target) -> None:
    pairs = drawn(seed=3)
    (_, (_, pruned)) = tried(Prunes(pairs, 0.2, 0.08), pairs, target)
    counted = pruned.counted(target)
    assert isinstance(pruned, LabelPairs) and pruned.pruned is not None and counted.staying is not None
    answers = torch.cat(list(pruned.pruned.answers.logits)).argmax(-1).numpy()
    full, labels = (torch.cat(list(each)) for each in (pairs.full.logits, pairs.full.labels))
    wanted = full.argmax(-1) if target.loss == "agreement" else labels
    assert np.array_equal(counted.staying, answers != wanted.numpy())


def test_a_selection_publishes_pruning_that_pays(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two layers little is saved behind the first; enough texts go on by harm alone and thresholds from .75 up."""
    monkeypatch.setattr("builder.levels.target._TIMES_FOR_BALANCE", 1000)
    monkeypatch.setattr("builder.levels.certificate.THRESHOLDS", THRESHOLDS[:180])
    for name, value in {"ALPHAS": (1.0,), "_MOST_OF_TOLERANCE": 1.0, "LEAST_SAVED": 0.0001}.items():
        monkeypatch.setattr(f"builder.levels.word_pruning.{name}", value)
    monkeypatch.setattr("builder.levels.selecting.LEAST_SAVED", 0.0001)
    train = written(tmp_path / "train.jsonl", "topic", 40, seed=302)
    held_out = written(tmp_path / "held_out.jsonl", "topic", 400, seed=901)
    found = select(tiny_home, train, held_out, Target.of(max_drop=20))
    assert found.ladder is not None and found.ladder.pruning is not None, found.profile.rows
    assert found.figures["alpha"] == 1.0 and 0 < found.figures["kept_tokens"] < 1
    entry, folder = Registry.open(tiny_home).hplm("acme/topic"), tiny_home.path / found.entry.folder
    assert entry.prunes_words and entry.kept_tokens("auto") == found.figures["kept_tokens"]
    stored, profile = read_ladder(folder, RootFolder(tiny_home.root("tiny")).fingerprint), read_profile(folder)
    assert stored is not None and stored.pruning == found.ladder.pruning
    assert profile == found.profile and read_json(folder / "candidates.json")["format_version"] == 3
    chosen = [(row["alpha"], row["chosen"]) for row in found.profile.rows]
    assert chosen == [*[(None, False)] * (len(chosen) - 2), (1.0, True), (None, False)]
    plain = select(tiny_home, train, held_out, Target.of(max_drop=20, guarantee="fleet"))
    assert plain.ladder is not None and plain.ladder.pruning is None
    assert not Registry.open(tiny_home).hplm("acme/topic").prunes_words and "alpha" not in plain.profile.rows[0]


def test_what_saves_less_than_it_has_to_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.levels.word_pruning.ALPHAS", (0.4,))
    pairs = drawn(seed=4)
    for kept, is_tried in ((1 - 0.9 * LEAST_SAVED, False), (0.1, True)):
        assert len(tried(Prunes(pairs, kept, 0.0), replace(pairs), Target.of(max_drop=3))) == 1 + is_tried
