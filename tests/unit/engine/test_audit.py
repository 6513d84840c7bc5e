"""The running audit: which rows it takes, what it counts, and when a version falls back to all its layers."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.engine import audit as audit_module
from backends.engine import service as service_module
from backends.engine.audit import SHARE, Audit, evidence
from backends.engine.failed_audits import FailedAudits, noted_failures
from backends.engine.job import Job
from backends.engine.service import UpperService
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.wire import AUTO, EARLY, FULL, Ticket, encode_tickets, fold_rows
from builder.construct.hplm.hplms import building_hplm, publish_linked
from served_engine import HIDDEN, Responses, running
from waiting import wait_until

Rows = list[np.ndarray]
NO_FAILURES = FailedAudits(Home(Path("nowhere")), "fp32")


@pytest.fixture
def topic(tiny_home: Home) -> HplmEntry:
    return Registry.open(tiny_home).hplm("acme/topic")


def with_ladder(home: Home, entry: HplmEntry, disagreement: float) -> Ladder:
    """A random head, whose answers have nothing to do with those of all layers; every row leaves."""
    root = RootFolder(home.root("tiny"))
    own = read_artifact(home.path / entry.folder, root.fingerprint).head
    torch.manual_seed(4)
    head = Head(torch.randn(own.weight.shape), torch.randn(own.bias.shape))
    ladder = Ladder(EarlyStep(1, head, 2.0, 0.0), 0.5, {"disagreement": disagreement})
    write_ladder(home.path / entry.folder, ladder, root.fingerprint)
    return ladder


def rows(count: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rng.integers(3, 20), HIDDEN)).astype(np.float16) for _ in range(count)]


def answers(service: UpperService, entry: HplmEntry, texts: Rows, level: str = AUTO) -> Iterator[dict[str, Any]]:
    pending: list[Responses] = []
    for row in texts:
        pending.append(queue.Queue())
        ticket = Ticket(entry.key, len(row), False, None, level=level)
        service.submit(fold_rows([row]), encode_tickets([ticket]), [b""], pending[-1].put)
    for each in pending:
        answered = each.get(timeout=30)
        assert isinstance(answered, list), answered
        yield json.loads(answered[0])


def said(found: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    return [(answer["label"], answer["level"], "doubtful" in answer) for answer in found]


@contextmanager
def audited(home: Home, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> Iterator[UpperService]:
    with monkeypatch.context() as while_it_runs:  # a later service of the same test audits as by default
        while_it_runs.setattr(service_module, "Audit", partial(Audit, share=share))
        with running(home) as service:
            yield service


def test_answers_stay_early_and_are_compared_with_the_full_ones(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ladder(tiny_home, topic, disagreement=0.6)
    texts = rows(40, seed=1)
    with audited(tiny_home, monkeypatch) as service:
        early, auto, full = (list(answers(service, topic, texts, level)) for level in (EARLY, AUTO, FULL))
        wait_until(lambda: service.audit.counts.total() == len(texts))  # comparisons come after the answers
        again = list(answers(service, topic, texts))
        list(answers(service, topic, rows(1, seed=2) * 8))
        wait_until(lambda: service.audit.counts.total() > len(texts))
    assert said(auto) == said(early) == said(again) and {answer["level"] for answer in auto} == {EARLY}
    counts, same = service.audit.counts, sum(a["label"] == b["label"] for a, b in zip(auto, full, strict=True))
    assert counts.total() == len(texts) + 1, "a text was compared twice"
    assert counts["same"] - same in (0, 1) and 0 < same < len(texts)
    assert service.audit.num_failed == 0


def test_a_ladder_that_breaks_its_promise_is_left(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_ladder(tiny_home, topic, disagreement=0.01)
    with audited(tiny_home, monkeypatch) as service:
        list(answers(service, topic, rows(40, seed=1)))
        wait_until(lambda: service.audit.has_failed(topic.key))
        texts = rows(10, seed=3)
        auto, full, early = (list(answers(service, topic, texts, level)) for level in (AUTO, FULL, EARLY))
    assert said(auto) == said(full) and {answer["level"] for answer in auto} == {FULL}
    assert all(answer["level"] == EARLY and answer["doubtful"] for answer in early)
    assert service.audit.num_failed == 1
    assert "hPLM acme/topic version 1 answers by all its layers from now on" in caplog.text


def test_a_broken_promise_is_known_after_a_restart_until_there_is_another_ladder(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_ladder(tiny_home, topic, disagreement=0.01)
    with audited(tiny_home, monkeypatch) as service:
        list(answers(service, topic, rows(40, seed=1)))
        wait_until(lambda: bool(noted_failures(tiny_home, topic)))
    registry = Registry.open(tiny_home)
    with building_hplm(tiny_home, topic.id):  # the same ladder in another version, as 'hplm students add' makes
        linked = publish_linked(tiny_home, registry, topic, lambda _: None, {})
    for entry in (topic, linked):
        caplog.clear()
        with running(tiny_home) as service:
            later = list(answers(service, entry, rows(10, seed=3)))
            assert service.audit.num_failed == 1
        assert {answer["level"] for answer in later} == {FULL}
        assert caplog.text.count("its ladder has failed the audit before") == 1
    with running(tiny_home, dtype="bf16") as service:
        assert {answer["level"] for answer in answers(service, topic, rows(10, seed=3))} == {EARLY}
    with_ladder(tiny_home, topic, disagreement=0.02)
    with running(tiny_home) as service:
        assert {answer["level"] for answer in answers(service, topic, rows(10, seed=3))} == {EARLY}


def test_a_version_fails_once_however_many_of_its_rows_ran_together(
    tiny_home: Home, topic: HplmEntry, caplog: pytest.LogCaptureFixture
) -> None:
    ladder = with_ladder(tiny_home, topic, disagreement=0.01)
    job, audit = Job(topic, rows(1, seed=1)[0], False, None, lambda _: None), Audit(FailedAudits(tiny_home, "fp32"))
    for _ in range(40):
        audit.note(job, ladder, is_same=False)
    assert audit.num_failed == 1 and audit.counts["different"] == 40
    assert caplog.text.count("answers by all its layers from now on") == 1


@pytest.mark.parametrize("content", ["", '{"texts": 40'])
def test_a_damaged_note_of_a_failed_audit_counts(tiny_home: Home, topic: HplmEntry, content: str) -> None:
    with_ladder(tiny_home, topic, disagreement=0.01)
    failures = FailedAudits(tiny_home, "fp32")
    assert topic not in failures and noted_failures(tiny_home, topic) == []
    failures.note(topic, texts=40, different=9)
    assert topic in failures and topic not in FailedAudits(tiny_home, "int8")
    [noted] = noted_failures(tiny_home, topic)
    assert (noted["hplm"], noted["texts"], noted["different"]) == (topic.id, 40, 9)
    [path] = tiny_home.audits.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644
    path.write_text(content)
    assert topic in failures and noted_failures(tiny_home, topic) == [{}]


def test_a_home_that_cannot_be_written_to_forgets_with_a_warning(
    tiny_home: Home, topic: HplmEntry, caplog: pytest.LogCaptureFixture
) -> None:
    with_ladder(tiny_home, topic, disagreement=0.01)
    tiny_home.audits.touch()
    failures = FailedAudits(tiny_home, "fp32")
    failures.note(topic, texts=40, different=9)
    assert f"that the audit of {topic.id} failed is forgotten at a restart" in caplog.text
    assert topic not in failures and noted_failures(tiny_home, topic) == []


@pytest.mark.parametrize("certified", [{}, {"disagreement": 1.0}, {"disagreement": 0.0}])
def test_what_cannot_be_tested_is_not_audited(certified: dict[str, float], topic: HplmEntry) -> None:
    head = Head(torch.zeros(2, HIDDEN), torch.zeros(2))
    job = Job(topic, rows(1, seed=1)[0], False, None, lambda _: None)
    assert not Audit(NO_FAILURES, share=1.0).takes(job, Ladder(EarlyStep(1, head, 1.0, 0.0), 1.0, certified))


def test_one_text_in_a_hundred_is_taken_always_the_same(topic: HplmEntry) -> None:
    ladder = Ladder(EarlyStep(1, Head(torch.zeros(2, HIDDEN), torch.zeros(2)), 1.0, 0.0), 1.0, {"disagreement": 0.1})

    def job(row: np.ndarray, level: str = AUTO) -> Job:
        return Job(topic, row, False, None, lambda _: None, level=level)

    texts = [row[:3] for row in rows(20_000, seed=5)]
    taken = [Audit(NO_FAILURES).takes(job(row), ladder) for row in texts]
    assert abs(np.mean(taken) - SHARE) < 4 * math.sqrt(SHARE / len(texts))
    one = texts[taken.index(True)]
    audit = Audit(NO_FAILURES)
    assert not audit.takes(job(one, EARLY), ladder) and not audit.takes(job(one, FULL), ladder)
    settling = job(one)
    settling.settles = True
    assert not audit.takes(settling, ladder)
    assert [audit.takes(job(one), ladder) for _ in range(3)] == [True, True, True]
    assert [audit.mark(job(one)) for _ in range(3)] == [True, False, False]
    assert not audit.takes(job(one), ladder)


def test_auditing_goes_on_where_most_rows_stay(topic: HplmEntry, seed: int) -> None:
    """Takes 8,000 texts, twice the slots, of which a tenth is answered early."""
    rng, head = np.random.default_rng(seed), Head(torch.zeros(2, HIDDEN), torch.zeros(2))
    ladder = Ladder(EarlyStep(1, head, 1.0, 0.0), 1.0, {"disagreement": 0.1})
    texts = rng.integers(0, 1 << 16, size=(800_000, 1, 4), dtype=np.uint16).view(np.float16)
    leaves = rng.random(len(texts)) < 0.1
    job, audit = Job(topic, rows(1, seed=1)[0], False, None, lambda _: None), Audit(NO_FAILURES)
    compared = np.zeros(len(texts), dtype=bool)
    for index, text in enumerate(texts):
        job.hidden = text
        if audit.takes(job, ladder) and leaves[index] and audit.mark(job):
            compared[index] = True
            audit.note(job, ladder, is_same=True)
    for quarter in range(4):
        part = slice(quarter * 200_000, (quarter + 1) * 200_000)
        assert 0.5 * SHARE < compared[part].sum() / leaves[part].sum() < 1.5 * SHARE


def test_rows_that_stay_use_up_no_slots(tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_SLOTS", 64)
    texts = rows(400, seed=6)
    ladder = with_ladder(tiny_home, topic, disagreement=0.6)
    with running(tiny_home) as service:
        sure = [answer["confidence"] for answer in answers(service, topic, texts, EARLY)]
    threshold = float(np.quantile(sure, 0.9))
    root = RootFolder(tiny_home.root("tiny"))
    stricter = replace(ladder, early=replace(ladder.early, threshold=threshold))
    write_ladder(tiny_home.path / topic.folder, stricter, root.fingerprint)
    with audited(tiny_home, monkeypatch) as service:
        early = [answer["level"] == EARLY for answer in answers(service, topic, texts)]
        wait_until(lambda: service.audit.counts.total() > 0.5 * sum(early))
    assert 20 < sum(early) < 60


def test_a_round_ends_once_half_the_slots_are_set(topic: HplmEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons that were never noted do not end the audit of a version."""
    monkeypatch.setattr(audit_module, "_SLOTS", 16)
    jobs = [Job(topic, row, False, None, lambda _: None) for row in rows(400, seed=7)]
    audit = Audit(NO_FAILURES, share=1.0)
    assert sum(audit.mark(job) for job in jobs) > len(jobs) / 2


def test_a_new_round_begins_without_the_old_counts(topic: HplmEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_TEXTS_A_ROUND", 10)
    ladder = Ladder(EarlyStep(1, Head(torch.zeros(2, HIDDEN), torch.zeros(2)), 1.0, 0.0), 1.0, {"disagreement": 0.02})
    job, audit = Job(topic, rows(1, seed=1)[0], False, None, lambda _: None), Audit(NO_FAILURES, share=1.0)
    for _ in range(10):
        audit.note(job, ladder, is_same=True)
    assert audit.takes(job, ladder)
    number = 0
    while not audit.has_failed(topic.key):
        audit.note(job, ladder, is_same=False)
        number += 1
    assert evidence(number, number, 0.03) >= 100 > evidence(number - 1, number - 1, 0.03)


@pytest.mark.parametrize("allowed", [0.01, 0.05])
def test_the_evidence_rarely_lies_and_finds_what_is_there(allowed: float, seed: int) -> None:
    """Plays rounds at the allowed share, and at four times it, and looks after every text."""
    rng = np.random.default_rng(seed)
    rounds, texts, most = 400, 1000, 80
    table = np.array([[evidence(n, k, allowed) if k <= n else 0.0 for k in range(most)] for n in range(texts + 1)])

    def alarms(share: float) -> float:
        different = np.cumsum(rng.random((rounds, texts)) < share, axis=1)
        capped = np.minimum(different, most - 1)
        return float((table[np.arange(1, texts + 1), capped] >= 100).any(axis=1).mean())

    assert alarms(allowed) <= 0.01 + 4 * math.sqrt(0.01 / rounds)
    assert alarms(4 * allowed) > 0.97


@pytest.mark.parametrize("allowed", [0.01, 0.05, 0.3, 0.8])
def test_evidence_is_a_mean_of_likelihood_ratios(allowed: float) -> None:
    logs = [evidence(50, k, allowed) for k in range(51)]
    assert logs == sorted(logs)
    assert evidence(0, 0, allowed) == pytest.approx(1.0)
    odds = [min(each * allowed, (1 + allowed) / 2) for each in (2.0, 4.0, 8.0)]
    expected = [math.prod([each / allowed] * 3 + [(1 - each) / (1 - allowed)] * 9) for each in odds]
    assert evidence(12, 3, allowed) == pytest.approx(sum(expected) / 3)
