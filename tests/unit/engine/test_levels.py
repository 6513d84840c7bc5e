"""Levels as the engine answers them: by the ladder, by what a request asks for, and by its deadline."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import Ladder
from backends.clock import now_us
from backends.engine import answering, emitted_queue, insurance, slotted_layers
from backends.engine.emitted_queue import EmittedQueue
from backends.engine.insurance import Insurance
from backends.engine.job import Job
from backends.engine.outcomes import Emitted
from backends.engine.stack import StackSettings, UpperStack
from backends.engine.stack_protocol import SoFar
from backends.errors import HplmError, UnavailableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.admission import Admission
from backends.wire import AUTO, EARLY, FULL, Ticket, encode_tickets, fold_rows
from ladder_cases import LENGTHS, answers, ask, damaged, ladder_of, rows
from served_engine import TINY, Responses, running
from waiting import LIMIT_S, wait_until


@pytest.fixture
def topic(tiny_home: Home) -> HplmEntry:
    return Registry.open(tiny_home).hplm("acme/topic")


def expected(home: Home, entry: HplmEntry, ladder: Ladder, after: int | None) -> list[dict[str, Any]]:
    """Return the answers of the same stack without exits; its layers are tested elsewhere."""
    root = RootFolder(home.root("tiny"))
    stack = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
    artifact = read_artifact(home.path / entry.folder, root.fingerprint)
    if after is not None:
        artifact = replace(artifact, head=ladder.early.head.to(torch.float16).to(torch.float32))
        stack._layers._upper.layers = stack._layers._upper.layers[:after]  # type: ignore[attr-defined]
        stack._geometry = replace(stack._geometry, num_upper_layers=after)
    ready = [stack.ready(1, lambda: artifact)] * len(LENGTHS)
    found = []
    temperature = ladder.full_temperature if after is None else ladder.early.temperature
    for logits in stack.run(stack.pack([torch.from_numpy(row) for row in rows()], ready), ready):
        confidence = torch.softmax(logits.double() / temperature, dim=-1).max().item()
        found.append({"label": entry.labels[int(logits.argmax())], "confidence": confidence})
    return found


def test_a_version_without_a_ladder_tells_no_level(tiny_home: Home, topic: HplmEntry) -> None:
    with running(tiny_home) as service:
        for answer in answers([*ask(service, topic, AUTO), *ask(service, topic, FULL)]):
            assert not {"level", "confidence", "doubtful"} & answer.keys()


@pytest.mark.parametrize("least_to_narrow", [0.0, 1.0])
def test_sure_rows_leave_early_and_the_others_go_on(
    tiny_home: Home, topic: HplmEntry, least_to_narrow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slotted_layers, "LEAST_TO_NARROW", least_to_narrow)
    ladder = ladder_of(tiny_home, topic, threshold=2.0)
    early, full = (expected(tiny_home, topic, ladder, after) for after in (1, None))
    threshold = sorted(each["confidence"] for each in early)[len(early) // 2]
    ladder = ladder_of(tiny_home, topic, threshold - 1e-4)
    with running(tiny_home) as service:
        by_level = {level: list(answers(ask(service, topic, level))) for level in (AUTO, EARLY, FULL)}
        counted = service.answers
    levels = [answer["level"] for answer in by_level[AUTO]]
    assert levels == [EARLY if each["confidence"] >= threshold - 1e-4 else FULL for each in early]
    assert {EARLY, FULL} == set(levels)
    confident, top = levels.count(EARLY), levels.count(FULL) + len(LENGTHS)
    assert counted == {(EARLY, "confident"): confident, (EARLY, "asked"): len(LENGTHS), (FULL, "top"): top}
    for level, answer, one, whole in zip(levels, by_level[AUTO], early, full, strict=True):
        wanted = one if level == EARLY else whole
        assert answer["label"] == wanted["label"]
        assert answer["confidence"] == pytest.approx(wanted["confidence"], abs=1e-4)
        assert "doubtful" not in answer
    for answer, one in zip(by_level[EARLY], early, strict=True):
        assert (answer["level"], answer["label"]) == (EARLY, one["label"])
        assert ("doubtful" in answer) == (one["confidence"] < threshold - 1e-4)
    for answer, whole in zip(by_level[FULL], full, strict=True):
        assert (answer["level"], answer["label"], "doubtful" in answer) == (FULL, whole["label"], False)


def test_what_is_said_is_fitted_by_more_texts_than_what_decides(tiny_home: Home, topic: HplmEntry) -> None:
    ladder = ladder_of(tiny_home, topic, threshold=2.0)
    decides = sorted(each["confidence"] for each in expected(tiny_home, topic, ladder, 1))
    threshold = decides[len(decides) // 2] - 1e-4
    plain, said = ladder_of(tiny_home, topic, threshold), ladder_of(tiny_home, topic, threshold, said=7.0)
    one = replace(plain, early=replace(plain.early, temperature=7.0))
    wanted = expected(tiny_home, topic, one, 1)
    assert said.early.temperature == plain.early.temperature
    with running(tiny_home) as service:
        found = list(answers(ask(service, topic, AUTO)))
    leaves = [each["confidence"] >= threshold for each in expected(tiny_home, topic, plain, 1)]
    assert [answer["level"] == EARLY for answer in found] == leaves and 0 < sum(leaves) < len(leaves)
    for answer, each, is_early in zip(found, wanted, leaves, strict=True):
        assert not is_early or answer["confidence"] == pytest.approx(each["confidence"], abs=1e-4)


def test_rows_that_settle_leave_however_sure_they_are(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which rows do is for `test_settling`; here all do that may."""
    monkeypatch.setattr(HplmEntry, "least_depth", lambda _, level: 1.0 if level == FULL else 0.5)

    def settling(_: object, job: Job, *__: object) -> None:
        assert job.settle() == (job.level == AUTO)

    monkeypatch.setattr(Admission, "_rejection", settling)
    ladder = ladder_of(tiny_home, topic, threshold=2.0)
    early, full = (expected(tiny_home, topic, ladder, after) for after in (1, None))
    with running(tiny_home) as service:
        found = {level: list(answers(ask(service, topic, level))) for level in (AUTO, FULL)}
        counted = service.answers
    for answer, one in zip(found[AUTO], early, strict=True):
        assert (answer["level"], answer["label"], answer["doubtful"]) == (EARLY, one["label"], True)
    for answer, whole in zip(found[FULL], full, strict=True):
        assert (answer["level"], answer["label"]) == (FULL, whole["label"])
    assert counted == {(EARLY, "deadline"): len(LENGTHS), (FULL, "top"): len(LENGTHS)}


def test_the_answer_at_hand_is_sent_before_the_deadline(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row goes on for long; a row beside it without a deadline waits for the better answer."""
    ladder_of(tiny_home, topic, threshold=2.0)
    run, due_in_us = UpperStack.run, Insurance.due_in_us
    may_end, due_us = threading.Event(), list[int]()

    def slow(stack: UpperStack, *arguments: Any) -> list[torch.Tensor]:
        found = run(stack, *arguments)
        assert may_end.wait(LIMIT_S)
        return found

    def noted(kept: Insurance, now_us: int) -> int | None:
        in_us = due_in_us(kept, now_us)
        if in_us is not None:
            due_us.append(now_us + in_us)
        return in_us

    guard_us = 500_000  # a thread of a busy machine wakes up late
    monkeypatch.setattr(insurance, "_GUARD_US", guard_us)
    monkeypatch.setattr(Insurance, "due_in_us", noted)
    monkeypatch.setattr(emitted_queue, "BEAT_EVERY_S", 10 * LIMIT_S)  # no beat sends it
    with running(tiny_home) as service:
        list(answers(ask(service, topic, FULL)))
        monkeypatch.setattr(UpperStack, "run", slow)
        deadline_us = now_us() + 3_000_000
        insured, patient, wants_full = (
            ask(service, topic, level, deadline)[0]
            for level, deadline in ((AUTO, deadline_us), (AUTO, None), (FULL, deadline_us))
        )
        answer = next(answers([insured]))
        answered_us = now_us()
        assert (answer["level"], answer["doubtful"]) == (EARLY, True)
        assert due_us[0] == deadline_us - guard_us
        assert due_us[0] <= answered_us, "a better answer could have come"
        assert patient.empty()
        time.sleep(max(0, deadline_us - now_us()) / 1e6)
        may_end.set()
        assert next(answers([patient]))["level"] == FULL
        assert isinstance(wants_full.get(timeout=30), UnavailableError)
        assert insured.empty(), "a row was answered twice"
        assert service.answers[EARLY, "deadline"] >= 1


def test_an_answer_in_hand_wakes_the_thread_that_answers_only_if_it_may_have_to_be_sent(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder_of(tiny_home, topic, threshold=2.0)
    put, found = EmittedQueue.put, list[Emitted]()

    def noted(queue: EmittedQueue, emitted: Emitted) -> None:
        found.append(emitted)
        put(queue, emitted)

    monkeypatch.setattr(EmittedQueue, "put", noted)
    with running(tiny_home) as service:
        for deadline_us in (None, now_us() + 60_000_000):
            found.clear()
            assert {answer["level"] for answer in answers(ask(service, topic, AUTO, deadline_us))} == {FULL}
            assert all(each.job.fallback is not None for each in found)
            so_far = [each for each in found if isinstance(each.outcome, SoFar)]
            assert len(so_far) == (0 if deadline_us is None else len(LENGTHS))
            assert len(found) == len(so_far) + len(LENGTHS)


def test_a_failure_after_an_early_answer_blames_nobody(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that were answered are not run again, and their hPLM is not quarantined."""
    ladder_of(tiny_home, topic, threshold=2.0)
    run = UpperStack.run
    sizes: list[int] = []

    def failing(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        sizes.append(len(hplms))
        found = run(stack, packed, hplms, *rest)
        if len(sizes) == 1:
            wait_until(lambda: service.answers[EARLY, "deadline"] == len(LENGTHS))
            raise MemoryError("out of memory")
        return found

    with running(tiny_home) as service:
        list(answers(ask(service, topic, FULL)))
        monkeypatch.setattr(UpperStack, "run", failing)
        with service._loop._changed:  # so that all are one batch
            insured = ask(service, topic, AUTO, now_us() + 1_500_000)
            patient = ask(service, topic, AUTO)
        assert all(answer["doubtful"] for answer in answers(insured))
        assert {answer["level"] for answer in answers(patient)} == {FULL}
        assert sizes[0] == 2 * len(LENGTHS) and sum(sizes[1:]) == len(LENGTHS)
        assert service._loop.quarantine.error(topic.key) is None
        assert all(each.empty() for each in insured), "a row was answered twice"


def test_a_row_that_is_left_over_runs_alone_before_it_is_blamed(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines come for all rows of a batch but one before it fails."""
    ladder_of(tiny_home, topic, threshold=2.0)
    run, sizes = UpperStack.run, list[int]()

    def failing(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        sizes.append(len(hplms))
        found = run(stack, packed, hplms, *rest)
        if len(sizes) == 1:
            wait_until(lambda: service.answers[EARLY, "deadline"] == 2 * len(LENGTHS))
            raise RuntimeError("a defect that does not come again")
        return found

    with running(tiny_home) as service:
        list(answers(ask(service, topic, FULL)))
        monkeypatch.setattr(UpperStack, "run", failing)
        patient, row = Responses(), rows()[0]
        with service._loop._changed:  # so that all are one batch
            insured = [each for _ in range(2) for each in ask(service, topic, AUTO, now_us() + 1_500_000)]
            service.submit(
                fold_rows([row]), encode_tickets([Ticket(topic.key, len(row), False, None)]), [b""], patient.put
            )
        assert all(answer["doubtful"] for answer in answers(insured))
        assert next(answers([patient]))["level"] == FULL
        assert sizes == [2 * len(LENGTHS) + 1, 1]
        assert service._loop.quarantine.error(topic.key) is None


def test_rows_of_a_closed_request_that_were_insured_are_answered_no_more(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row cannot be staged, which answers the request; the other's deadline comes while it is computed."""
    ladder_of(tiny_home, topic, threshold=2.0)
    damaged_hplm = Registry.open(tiny_home).hplm("acme/mood")
    (tiny_home.path / damaged_hplm.folder / "weights.safetensors").write_bytes(b"short")
    run, responses, row = UpperStack.run, Responses(), rows()[0]

    def slow(stack: UpperStack, *arguments: Any) -> list[torch.Tensor]:
        found = run(stack, *arguments)
        time.sleep(0.3)
        return found

    with running(tiny_home) as service:
        monkeypatch.setattr(UpperStack, "run", slow)
        tickets = [Ticket(each.key, len(row), False, now_us() + 200_000) for each in (damaged_hplm, topic)]
        service.submit(fold_rows([row, row]), encode_tickets(tickets), [b"", b""], responses.put)
        assert isinstance(responses.get(timeout=30), HplmError)
        assert {answer["level"] for answer in answers(ask(service, topic, AUTO))} == {FULL}
        assert responses.empty(), "a request was answered twice"


def test_in_a_millisecond_rows_are_answered_or_rejected_once(tiny_home: Home, topic: HplmEntry) -> None:
    ladder_of(tiny_home, topic, threshold=2.0)
    with running(tiny_home) as service:
        list(answers(ask(service, topic, FULL)))
        pending = [each for _ in range(20) for each in ask(service, topic, AUTO, now_us() + 1_000)]
        for each in pending:
            answered = each.get(timeout=30)
            assert isinstance(answered, UnavailableError) or json.loads(answered[0])["level"] in (EARLY, FULL)
        assert all(each.empty() for each in pending)


def test_early_of_a_damaged_ladder_is_an_error_and_not_silently_full(tiny_home: Home, topic: HplmEntry) -> None:
    ladder_of(tiny_home, topic, threshold=0.0)
    damaged(tiny_home.path / topic.folder, "heads")
    with running(tiny_home) as service:
        error = ask(service, topic, EARLY)[0].get(timeout=30)
        assert isinstance(error, HplmError) and "level early of hPLM 'acme/topic' is damaged" in str(error)
        assert all("level" not in answer for answer in answers(ask(service, topic, AUTO)))


def with_certificate(home: Home, entry: HplmEntry, **declared: Any) -> HplmEntry:
    """Publish a version with the same weights, whose ladder the registry knows of."""
    ladder = {"after": 1, "layers": 2, "answered_early": 0.5}
    metrics = {**entry.metrics, "levels": [EARLY, FULL], "ladder": ladder, "declared": declared}
    registry = Registry.open(home)
    return registry.publish_hplm(entry.id, entry.domain, entry.task, entry.labels, entry.folder, metrics)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_only_rows_that_can_be_answered_early_settle(tiny_home: Home, topic: HplmEntry, is_damaged: bool) -> None:
    """What the registry says of a ladder counts until the files are read."""
    ladder_of(tiny_home, topic, threshold=1.1)
    if is_damaged:
        damaged(tiny_home.path / topic.folder, "heads")
    entry = with_certificate(tiny_home, topic)
    with running(tiny_home) as service:
        assert all(("level" in answer) != is_damaged for answer in answers(ask(service, entry, AUTO)))
        with service._loop._changed:
            pending = ask(service, entry, AUTO)
            waiting = list(service.admission.waiting)
            assert {job.least_depth for job in waiting} == {1.0 if is_damaged else 0.5}
            assert {job.settle() for job in waiting} == {not is_damaged}
        assert len(list(answers(pending))) == len(LENGTHS)


def test_an_hplm_that_rejects_late_rows_sends_no_doubtful_answer(
    tiny_home: Home, topic: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settles a row, nor is an answer at hand sent; who asks for `early` gets it as before."""
    ladder_of(tiny_home, topic, threshold=2.0)
    entry, run = with_certificate(tiny_home, topic, late="reject"), UpperStack.run
    insured: list[int | None] = []

    def slow(stack: UpperStack, *arguments: Any) -> list[torch.Tensor]:
        found = run(stack, *arguments)
        time.sleep(0.1)
        insured.append(service._loop._insurance.due_in_us(now_us()))
        monkeypatch.setattr(answering, "now_us", lambda: now_us() + 20_000_000)  # the result is late
        return found

    with running(tiny_home) as service:
        assert all(answer["doubtful"] for answer in answers(ask(service, entry, EARLY)))
        monkeypatch.setattr(UpperStack, "run", slow)
        with service._loop._changed:
            pending = ask(service, entry, AUTO, now_us() + 20_000_000)
            assert not any(job.settle() for job in service.admission.waiting)
        assert all(isinstance(each.get(timeout=30), UnavailableError) for each in pending)
        assert service.answers[EARLY, "deadline"] == 0 and set(insured) == {None}


def test_the_cost_model_learns_from_the_layers_that_rows_passed(tiny_home: Home, topic: HplmEntry) -> None:
    ladder_of(tiny_home, topic, threshold=0.0)
    with running(tiny_home) as service:
        with service._loop._changed:  # so that all are one batch
            pending = [*ask(service, topic, AUTO), *ask(service, topic, FULL)]
        assert len(list(answers(pending))) == 2 * len(LENGTHS)
        costs = service.admission.costs_of(TINY)
        wait_until(lambda: bool(costs._recent))  # answers are sent while the batch still runs
        shape = costs._recent[-1].shape
    assert (shape.rows, shape.tokens) == (2 * len(LENGTHS), 1.5 * sum(LENGTHS))  # one of two layers, and both
