"""Ensembles in a selection: tried where it is worth it, and served only where they are proven to answer better."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, read_ladder
from backends.engine.ensemble import log_mixed
from backends.engine.exits import NEVER
from backends.engine.stack import UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json
from bench.kit.tiny_home import ignore, sample_texts
from builder.construct.hplm.states import encoded_set
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.task_objectives import objective_of
from builder.levels.answers import StepAnswers
from builder.levels.candidate import Candidate, Trial
from builder.levels.certificate import THRESHOLDS, Changes, certify
from builder.levels.ensembles import Pair, with_ensembles
from builder.levels.guarantee import Each, Fleet
from builder.levels.paired_answers import LabelPairs
from builder.levels.profile import read_profile
from builder.levels.served import served_rows
from builder.levels.target import Target
from selection_cases import STACK, select, written

RISK = 0.1
STEP = EarlyStep(1, Head(torch.zeros(3, 4), torch.zeros(3)), 1.0, NEVER)
FITTING = np.arange(400)


def test_a_threshold_passes_as_long_as_both_tests_do() -> None:
    """Against a loop over thresholds, with SciPy's binomial distribution."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(60):
        rows, tolerance = int(rng.integers(100, 1000)), float(rng.choice([0.02, 0.05]))
        confidence = 1 - 0.5 * rng.random(rows) ** rng.uniform(1, 6)
        is_harm = rng.random(rows) < rng.uniform(0, 0.2) * (1 - confidence)
        changed = rng.random(rows) < rng.uniform(0, 0.2)
        is_help = rng.random(rows) < rng.uniform(0.4, 1)
        changes = Changes(changed & is_help, changed & ~is_help)
        expected = None
        for threshold in THRESHOLDS:
            leaves = confidence >= threshold
            helped, harmed = (int(each[~leaves].sum()) for each in changes)
            if stats.binom.cdf(int(is_harm[leaves].sum()), rows, tolerance) > RISK:
                break
            if not helped + harmed or stats.binom.cdf(harmed, helped + harmed, 0.5) > RISK:
                break
            expected = threshold
        found = certify(confidence, is_harm, tolerance, Each(RISK), changes=changes)
        assert (None if found is None else found.threshold) == expected, f"seed {seed}"
        outcomes.add(expected)
    assert len(outcomes) > 2, f"seed {seed}"


def test_what_is_no_better_seldom_seems_to_be() -> None:
    """Rows are put right as often as wrong, so each ensemble that passes is a mistake."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    tenants, mistakes = 400, 0
    for _ in range(tenants):
        confidence = 1 - 0.5 * rng.random(500)
        changed, is_help = rng.random(500) < 0.08 * (1 - confidence) * 4, rng.random(500) < 0.5
        changes = Changes(changed & is_help, changed & ~is_help)
        mistakes += certify(confidence, np.zeros(500, bool), 0.05, Each(RISK), changes=changes) is not None
    assert mistakes / tenants <= RISK + 2 * (RISK * (1 - RISK) / tenants) ** 0.5, f"seed {seed}"
    assert not Fleet().proves_better(100, 0)


def drawn(rows: int, seed: int, full_noise: float = 1.0, early_noise: float = 1.0) -> LabelPairs:
    """Answers whose errors are independent, so that a mean of both is right more often than either."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(3, size=rows))
    sure = torch.from_numpy(rng.uniform(0, 6, rows))[:, None] * torch.nn.functional.one_hot(labels, 3)

    def step(noise: float) -> StepAnswers:
        logits = (sure + noise * torch.from_numpy(rng.normal(size=(rows, 3)))).float()
        return StepAnswers(list(logits[:, None]), list(labels[:, None]), (logits.argmax(-1) == labels).numpy())

    return LabelPairs(step(early_noise), step(full_noise), has_labels=True)


def tried(pairs: LabelPairs, target: Target, num_certifying: int = 1600) -> list[Pair]:
    return with_ensembles([(STEP, pairs)], FITTING, num_certifying, target)


def test_an_ensemble_that_answers_better_is_certified_and_keeps_the_target_on_other_rows() -> None:
    pairs, target = drawn(2000, seed=1), Target.of(max_drop=0.3)
    candidates = tried(pairs, target)
    assert [answers.ensemble is not None for _, answers in candidates] == [False, True]
    trial = Trial(target, len(candidates), FITTING, np.arange(400, 2000), num_layers=3)
    plain, mixed = (Candidate(*pair, trial) for pair in candidates)
    assert plain.certificate is not None and mixed.certificate is not None
    assert mixed.certificate == plain.certificate, "of a drop rows that are answered better use up nothing"
    assert mixed.certified["put_right"] > mixed.certified["put_wrong"]
    assert mixed.certified["accuracy"] > plain.certified["accuracy"] and "put_right" not in plain.certified
    ladder, others = mixed.ladder({}), drawn(20_000, seed=2)
    assert ladder.ensemble is not None and ladder.ensemble.full_weight == mixed.full_weight
    early, full = (torch.cat(list(each.logits)) for each in (others.early, others.full))
    leaves = torch.softmax(early / ladder.early.temperature, -1).amax(-1) >= ladder.early.threshold
    settings = ladder.early.temperature, ladder.full_temperature, ladder.ensemble.full_weight
    logits = torch.from_numpy(log_mixed(early.numpy(), full.numpy(), *settings))
    labels = torch.cat(list(others.full.labels))
    going_on, alone = (~leaves & (each.argmax(-1) == labels) for each in (logits, full))
    assert int(going_on.sum()) > int(alone.sum())
    at_exit = leaves & (early.argmax(-1) == labels)
    drop = float((full.argmax(-1) == labels).float().mean() - (at_exit | going_on).float().mean())
    assert drop <= 0.003


def test_a_target_accuracy_counts_what_rows_that_go_on_are_answered_by() -> None:
    """Where all layers alone keep it, but cannot prove that, an ensemble can."""
    pairs = drawn(2000, seed=3)
    target = Target.of(target_accuracy=float(pairs.full.is_right.mean()) - 0.005)
    candidates = tried(pairs, target)
    trial = Trial(target, len(candidates), FITTING, np.arange(400, 2000), num_layers=3)
    plain, mixed = (Candidate(*pair, trial) for pair in candidates)
    assert plain.certificate is None and mixed.certificate is not None
    assert mixed.certificate.exit_share > 0 and mixed.certified["accuracy"] > 1 - target.tolerance


@pytest.mark.parametrize(
    ("pairs", "target", "num_certifying"),
    [
        pytest.param(drawn(2000, 1), Target.of(agreement=0.98), 1600, id="who wants the full answers"),
        pytest.param(drawn(2000, 1), Target.of(max_drop=2, guarantee="fleet"), 1600, id="nothing is proven of one"),
        pytest.param(drawn(2000, 1), Target.of(max_drop=2), 140, id="half the risk takes more rows"),
        pytest.param(drawn(2000, 1, full_noise=0.0), Target.of(max_drop=2), 1600, id="full answers are all right"),
    ],
)
def test_no_ensemble_is_tried_where_it_could_not_be_certified(
    pairs: LabelPairs, target: Target, num_certifying: int
) -> None:
    """The risk is not divided for nothing."""
    assert tried(pairs, target, num_certifying) == [(STEP, pairs)]


def test_without_labels_nothing_is_better() -> None:
    pairs = drawn(2000, 1)
    assert len(tried(LabelPairs(pairs.early, pairs.full, has_labels=False), Target.of(max_drop=2))) == 1


def test_a_selection_publishes_an_ensemble_that_is_better(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most held-out texts have their early answers for labels, so that all layers alone cannot prove the target."""
    train = written(tmp_path / "train.jsonl", "topic", 40, seed=100)
    held_out = written(tmp_path / "held_out.jsonl", "topic", 400, seed=901)
    monkeypatch.setattr("builder.levels.ensembles.FULL_WEIGHTS", (0.1,))
    before = select(tiny_home, train, held_out, Target.of(agreement=0.5))
    assert before.ladder is not None and before.ladder.ensemble is None, "for agreement none is tried"
    assert "full_weight" not in before.profile.rows[0]
    relabel(tiny_home, before.ladder.early, held_out)
    of_all_layers = select(tiny_home, train, held_out, Target.of(max_drop=50)).figures["full_accuracy"]

    found = select(tiny_home, train, held_out, Target.of(target_accuracy=of_all_layers - 1e-3))
    assert found.ladder is not None and found.ladder.ensemble is not None, found.reason
    assert found.figures["full_weight"] == 0.1 and found.figures["put_right"] > found.figures["put_wrong"]
    assert found.figures["accuracy"] > of_all_layers
    folder = tiny_home.path / found.entry.folder
    stored, profile = read_ladder(folder, RootFolder(tiny_home.root("tiny")).fingerprint), read_profile(folder)
    assert stored is not None and stored.ensemble == found.ladder.ensemble
    assert profile is not None and profile == found.profile
    assert read_json(folder / "candidates.json")["format_version"] == 2
    assert [(row["full_weight"], row["chosen"]) for row in profile.rows] == [(None, False), (0.1, True), (None, False)]


def relabel(home: Home, early: EarlyStep, file: Path) -> None:
    """Give three of four texts of a file the label of their early answer."""
    root, examples = RootFolder(home.root("tiny")), read_examples(file, "classification")
    entry = Registry.open(home).hplm("acme/topic")
    objective = objective_of(TaskData(entry.task, entry.labels, examples, examples))
    texts = encoded_set(home, entry.domain, objective, examples, "texts", ignore)
    artifact = read_artifact(home.path / entry.folder, root.fingerprint)
    (served,) = served_rows(UpperStack(root, STACK), artifact, (early.after,), objective, texts, "texts", ignore)
    head, rows = early.stored_head.to(torch.float32), list[dict[str, str]]()
    for number, (text, at_exit) in enumerate(zip(sample_texts(400, 901), served.answered_by(head), strict=True)):
        label = text.topic if number % 4 == 0 else entry.labels[int(at_exit[0].argmax())]
        rows.append({"text": text.text, "label": label})
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
