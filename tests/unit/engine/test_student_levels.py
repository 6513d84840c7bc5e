"""Students as the engine answers them: by name, by the load, and never with what belongs to others."""

from __future__ import annotations

import json
import queue
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adapter_reference import random_adapters, reference_student_logits
from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.adapters.student_adapters import STUDENT_FILES, StudentAdapters, write_student_adapters
from backends.engine.service import UpperService
from backends.engine.stage_cuts import DeviceMemoryError
from backends.engine.student_layers import StudentLayers
from backends.errors import ErrorCode, HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students
from backends.scheduling.student_count import Backlog
from backends.stack_key import FULL, STUDENTS
from backends.storage import read_json, write_json
from backends.wire import AUTO, EARLY, Ticket, encode_tickets, fold_rows
from bench.kit.random_students import random_students, student_adapters_of
from builder.construct.hplm.hplms import publish_artifact
from served_engine import HIDDEN, TINY, Responses, running
from waiting import wait_until

COUNT, DEPTH = 3, 1 / 2
LENGTHS = [3, 9, 20, 4, 17, 6]
ERRORS = {
    "gone": "made for other students of its root",
    "newer": "in the format of a newer release",
    "no inputs": "damaged",
    "short layers": "damaged",
}
Row = np.ndarray[Any, Any]


class Offer:
    """An hPLM of the home's tiny root, published with random adapters for random students."""

    def __init__(self, home: Home, of: str, name: str, best: int = COUNT, seed: int = 1, **figures: Any) -> None:
        self.home, self.root = home, RootFolder(home.root("tiny"))
        registry = Registry.open(home)
        model = registry.hplm(of)
        self.students = students_of(self.root)
        artifact = replace(read_artifact(home.path / model.folder, self.root.fingerprint), hplm=name)
        torch.manual_seed(seed)
        size = len(artifact.head.bias), self.students.shape.width
        heads = [Head(torch.randn(size), torch.randn_like(artifact.head.bias)) for _ in range(COUNT)]
        adapters = random_adapters(random.Random(seed), self.students.geometry, "lora")
        own = student_adapters_of(self.students, adapters, heads, best)
        self._depth = self.students.shape.depth(self.root.geometry)
        metrics = {STUDENTS: {"set": self.students.fingerprint, "best": best, "depth": self._depth, **figures}}
        published = publish_artifact(home, registry, artifact, model.domain, metrics)
        write_student_adapters(home.path / published.folder, own)
        self.entry = registry.hplm(name)
        stored = StudentAdapters(own.set_fingerprint, own.adapters.to(torch.bfloat16), own.heads, own.steps, own.best)
        self.artifact = artifact.with_students(stored, self.students)
        self.expected = {count: list(map(self._reference(count), rows())) for count in range(1, COUNT + 1)}

    def _reference(self, count: int) -> Callable[[Row], torch.Tensor]:
        def logits(row: Row) -> torch.Tensor:
            return reference_student_logits(self.students, self.artifact, torch.from_numpy(row).float(), count)

        return logits


def students_of(root: RootFolder) -> StudentSet:
    return read_students(root) or random_students(root, COUNT, 1, torch.Generator().manual_seed(1))


@pytest.fixture
def offer(tiny_home: Home) -> Offer:
    return Offer(tiny_home, "acme/topic", "acme/students")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is; how the load decides is for `test_student_count`."""
    monkeypatch.setattr(Backlog, "pressure", lambda *_: 0.1)


def rows() -> list[Row]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(length, HIDDEN)).astype(np.float16) for length in LENGTHS]


def ask(service: UpperService, entry: HplmEntry, level: str, deadline_us: int | None = None) -> list[Responses]:
    """One request for each row."""
    pending: list[Responses] = []
    for row in rows():
        pending.append(queue.Queue())
        tickets = encode_tickets([Ticket(entry.key, len(row), False, deadline_us, level=level)])
        service.submit(fold_rows([row]), tickets, [b""], pending[-1].put)
    return pending


def answers(pending: list[Responses]) -> list[dict[str, Any]]:
    found = [each.get(timeout=30) for each in pending]
    assert all(isinstance(each, list) for each in found), found
    return [json.loads(each[0]) for each in found if isinstance(each, list)]


def error(pending: list[Responses]) -> HplmError:
    found = [each.get(timeout=30) for each in pending]
    assert all(isinstance(each, HplmError) for each in found), found
    assert isinstance(found[0], HplmError)
    return found[0]


def require_of(offer: Offer, found: list[dict[str, Any]], count: int) -> None:
    own = offer.artifact.students
    assert own is not None
    for answer, logits in zip(found, offer.expected[count], strict=True):
        sure = torch.softmax(logits.double() / own.steps[count - 1].temperature, dim=-1).max().item()
        assert (answer["level"], answer["label"]) == (f"students-{count}", offer.entry.labels[int(logits.argmax())])
        assert answer["confidence"] == pytest.approx(sure, abs=1e-3) and "doubtful" not in answer


def test_the_load_leaves_as_many_as_were_certified(
    tiny_home: Home, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backlog, "pressure", lambda *_: 9.0)
    certified = Offer(tiny_home, "acme/topic", "acme/certified", seed=2, least=2)
    assert certified.entry.way(STUDENTS).least_depth == 2 * DEPTH
    with running(tiny_home) as service:
        with service._loop._changed:  # so that rows of both are one batch
            pending = [(each, ask(service, each.entry, STUDENTS)) for each in (offer, certified)]
            one = ask(service, certified.entry, "students-1")
        for (each, asked), count in zip(pending, (1, 2), strict=True):
            require_of(each, answers(asked), count)
        require_of(certified, answers(one), 1)


@pytest.mark.parametrize("least", [0, COUNT + 1, "some", None])
def test_figures_that_cannot_be_read_offer_no_students(tiny_home: Home, least: Any) -> None:
    assert Offer(tiny_home, "acme/topic", "acme/certified", least=least).entry.students is None


def test_each_number_of_students_is_answered_as_named(tiny_home: Home, offer: Offer) -> None:
    with running(tiny_home) as service:
        with service._loop._changed:  # so that rows of all numbers are one batch
            pending = {count: ask(service, offer.entry, f"students-{count}") for count in range(1, COUNT + 1)}
        for count, of_count in pending.items():
            require_of(offer, answers(of_count), count)
        require_of(offer, answers(ask(service, offer.entry, STUDENTS)), COUNT)
        assert service.answers.keys() >= {(f"students-{count}", "asked") for count in range(1, COUNT + 1)}
        assert {reason for _, reason in service.answers} == {"asked"}


def test_students_take_of_the_memory_of_their_device(tiny_home: Home, offer: Offer) -> None:
    budget = 1 << 30
    with running(tiny_home, device_memory=budget) as service:
        require_of(offer, answers(ask(service, offer.entry, "students-1")), 1)
        (left,) = service._cuts._rooms() or []
    assert budget - left > 2 * offer.students.served_bytes + 2 * offer.root.upper_bytes
    complaint = "the set of students of root 'tiny' takes .* MB in 1 stage"
    with (
        pytest.raises(DeviceMemoryError, match=complaint),
        running(tiny_home, device_memory=budget - left - 1) as service,
    ):
        raise error(ask(service, offer.entry, "students-1"))


def test_narrow_students_of_several_tenants_answer_beside_each_other(tiny_home: Home) -> None:
    """From hidden rows of the root's width, which rows of another width are not."""
    root = RootFolder(tiny_home.root("tiny"))
    students = random_students(root, COUNT, 2, torch.Generator().manual_seed(1), width=HIDDEN // 2)
    offers = [Offer(tiny_home, "acme/topic", f"acme/narrow-{seed}", seed=seed) for seed in (1, 2)]
    assert all(each.entry.students and each.entry.students.edition == students.fingerprint for each in offers)
    with running(tiny_home) as service:
        with service._loop._changed:  # so that rows of both are one batch
            pending = [
                (each, count, ask(service, each.entry, f"students-{count}")) for each in offers for count in (1, 3)
            ]
        for each, count, of_hplm in pending:
            require_of(each, answers(of_hplm), count)
        ticket, other = Ticket(offers[0].entry.key, 3, False, None, level=STUDENTS), queue.Queue[Any]()
        service.submit(fold_rows([rows()[0][:, : HIDDEN // 2]]), encode_tickets([ticket]), [b""], other.put)
        assert f"hidden rows are {HIDDEN // 2} wide, not {HIDDEN}" in str(other.get(timeout=30))


def test_all_that_is_not_asked_for_stays_as_it_was(tiny_home: Home, offer: Offer) -> None:
    """The same hPLM with its other weights, and one without students."""
    topic = Registry.open(tiny_home).hplm("acme/topic")
    with running(tiny_home) as service:
        for level in (AUTO, FULL):
            plain, beside = (answers(ask(service, entry, level)) for entry in (topic, offer.entry))
            assert not any({"level", "confidence"} & answer.keys() for answer in beside)
            for answer, other in zip(plain, beside, strict=True):
                assert answer["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_the_load_decides_how_many_students_answer(
    tiny_home: Home, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that leave it to the load get the least under pressure; rows that name a number keep it."""
    monkeypatch.setattr(Backlog, "pressure", lambda _, count: 2.0 if count > 1 else 0.1)
    with running(tiny_home) as service:
        with service._loop._changed:
            pending = [ask(service, offer.entry, level) for level in (STUDENTS, "students-3")]
        for of_level, count in zip(pending, (1, 3), strict=True):
            require_of(offer, answers(of_level), count)
        assert service.answers == {("students-1", "load"): len(LENGTHS), ("students-3", "asked"): len(LENGTHS)}
        costs = service.admission.costs_of(offer.entry.stack(STUDENTS))
        wait_until(lambda: bool(costs._recent))  # answers are sent while the batch still runs
        shape = costs._recent[-1].shape
    assert shape.tokens == pytest.approx(sum(LENGTHS) * DEPTH * (1 + 3))


def test_hplms_with_fewer_students_run_beside_others(tiny_home: Home, offer: Offer) -> None:
    fewer = Offer(tiny_home, "acme/topic", "acme/fewer", best=1, seed=2)
    with running(tiny_home, num_slots=2) as service:  # one slot: each tenant's rows evict the other's
        for _ in range(2):
            pending = [(each, ask(service, each.entry, STUDENTS)) for each in (offer, fewer)]
            for (each, of_hplm), count in zip(pending, (COUNT, 1), strict=True):
                require_of(each, answers(of_hplm), count)


@pytest.mark.parametrize("level", [STUDENTS, "students-1", "students-8"])
def test_a_level_that_an_hplm_lacks_is_an_error_before_anything_runs(tiny_home: Home, offer: Offer, level: str) -> None:
    topic = Registry.open(tiny_home).hplm("acme/topic")
    with running(tiny_home) as service:
        found = error(ask(service, topic, level))
        assert found.code == ErrorCode.INVALID_ARG and f"'acme/topic' has no level '{level}'; it has full" in str(found)
        beyond = error(ask(service, offer.entry, "students-4"))
        assert beyond.code == ErrorCode.INVALID_ARG
        assert str(beyond).endswith("it has full, students, students-1, students-2, students-3")
        assert service.admission.batches.figures.batches == 0


@pytest.mark.parametrize("file_name", STUDENT_FILES)
def test_damaged_students_cost_their_own_answers_only(tiny_home: Home, offer: Offer, file_name: str) -> None:
    (tiny_home.path / offer.entry.folder / file_name).write_bytes(b"{")
    with running(tiny_home) as service:
        assert "what this hPLM has for students is damaged" in str(error(ask(service, offer.entry, STUDENTS)))
        assert len(answers(ask(service, offer.entry, AUTO))) == len(LENGTHS)


@pytest.mark.parametrize("how", ["gone", "newer", "no inputs", "short layers"])
def test_a_damaged_set_costs_the_answers_of_students_only(tiny_home: Home, how: str) -> None:
    root = RootFolder(tiny_home.root("tiny"))
    folder = random_students(root, COUNT, 1, torch.Generator().manual_seed(1), width=HIDDEN // 2).path
    offer = Offer(tiny_home, "acme/topic", "acme/students")
    if how == "gone":
        shutil.rmtree(folder)
    elif how == "newer":
        write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "format_version": 99})
    elif how == "no inputs":
        (folder / "inputs.safetensors").unlink()
    else:
        (folder / "layers.safetensors").write_bytes(b"short")
    with running(tiny_home) as service:
        for _ in range(2):  # a second time, too, they are not silently answered by all layers
            assert ERRORS[how] in str(error(ask(service, offer.entry, STUDENTS)))
        for level in (AUTO, FULL):
            assert len(answers(ask(service, offer.entry, level))) == len(LENGTHS)


@pytest.mark.parametrize("width", [HIDDEN, HIDDEN // 2])
def test_rows_end_on_the_set_that_they_began_with(
    tiny_home: Home, offer: Offer, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set is replaced while rows run; a version for the new one runs beside the old until nothing is on that."""
    go, begun, run = threading.Event(), threading.Event(), StudentLayers.run

    def held(layers: StudentLayers, packed: Any, rows: Any) -> list[torch.Tensor]:
        begun.set()
        assert go.wait(30)
        return run(layers, packed, rows)

    with running(tiny_home) as service:
        require_of(offer, answers(ask(service, offer.entry, STUDENTS)), COUNT)
        monkeypatch.setattr(StudentLayers, "run", held)
        pending = ask(service, offer.entry, STUDENTS)
        assert begun.wait(30)
        new_set = random_students(offer.root, COUNT, 2, torch.Generator().manual_seed(9), width)
        newer = Offer(tiny_home, "acme/topic", "acme/students", seed=3)
        assert newer.entry.stack(STUDENTS).edition == new_set.fingerprint != offer.entry.stack(STUDENTS).edition
        go.set()
        require_of(offer, answers(pending), COUNT)
        require_of(newer, answers(ask(service, newer.entry, STUDENTS)), COUNT)
        require_of(offer, answers(ask(service, offer.entry, STUDENTS)), COUNT)
        monkeypatch.setattr(service._snapshot, "stacks", lambda: {TINY, newer.entry.stack(STUDENTS)})
        service.release_unused()
        assert not service._stacks.holds(offer.entry.stack(STUDENTS))
        assert service._stacks.holds(newer.entry.stack(STUDENTS))


def test_students_and_a_ladder_go_together(tiny_home: Home, offer: Offer) -> None:
    own = offer.artifact.head
    head = Head(torch.randn_like(own.weight), torch.randn_like(own.bias))
    ladder = Ladder(EarlyStep(1, head, 2.0, 0.0), 0.5, {})
    write_ladder(tiny_home.path / offer.entry.folder, ladder, offer.root.fingerprint)
    with running(tiny_home) as service:
        assert {answer["level"] for answer in answers(ask(service, offer.entry, AUTO))} == {EARLY}
        require_of(offer, answers(ask(service, offer.entry, "students-2")), 2)


def test_a_registry_that_says_something_else_is_an_error(tiny_home: Home, offer: Offer) -> None:
    """A depth that stands for another number of students would be answered by too few, silently."""
    registry, described = Registry.open(tiny_home), {"set": offer.students.fingerprint, "best": COUNT, "depth": 0.4}
    published = publish_artifact(tiny_home, registry, offer.artifact, offer.entry.domain, {STUDENTS: described})
    for name in STUDENT_FILES:
        shutil.copy(tiny_home.path / offer.entry.folder / name, tiny_home.path / published.folder / name)
    with running(tiny_home) as service:
        assert "registry says of the students" in str(error(ask(service, registry.hplm("acme/students"), STUDENTS)))
