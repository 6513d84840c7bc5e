"""Levels of a ladder that `hplm select` published, asked of the real server over gRPC and HTTP."""

from __future__ import annotations

import json
import shutil
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.ladder import Ladder, write_ladder
from backends.adapters.student_adapters import write_student_adapters
from backends.engine.exits import Exit, confidences
from backends.engine.stack import StackSettings, UpperStack
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import students_folder
from bench.kit.random_students import random_student_adapters, random_students
from bench.kit.tiny_home import ignore, sample_texts
from builder.construct.hplm.hplms import publish_artifact
from builder.construct.hplm.states import encoded_set
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.task_objectives import objective_of
from builder.levels.material import LabelledFiles
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.served import served_rows
from builder.levels.target import Target
from builder.lifecycle.rollback import rollback_hplm
from demo.laddered import Laddered
from demo.tasks import DemoTask, Example
from hplm_client import Classification, HplmClient, InvalidRequestError
from served_home import Served, wait_until_served
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.server
NAME, STUDENTS_NAME = "ladder/topic", "students/topic"
REASONS = (("early", "confident"), ("full", "top"))


def is_live(served: Served, entry: HplmEntry) -> bool:
    """Whether each process of the server answers with that version, as far as many rows at once meet them all."""
    with HplmClient(f"grpc://{served.grpc_url}", rows_per_request=1) as client:
        answers = client.infer_many([(entry.id, "my cat is lovely")] * 16)
    return all(isinstance(answer, Classification) and answer.version == entry.version for answer in answers)


def written(path: Path, count: int, seed: int) -> Path:
    rows = [{"text": text.text, "label": text.topic} for text in sample_texts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def halving(served: Served, ladder: Ladder, artifact: HplmArtifact, texts: Path) -> Ladder:
    """The ladder with a threshold that half of the texts pass."""
    root, domain = RootFolder(served.home.root("tiny")), Registry.open(served.home).hplm(NAME).domain
    examples = read_examples(texts, "classification")
    objective = objective_of(TaskData("classification", artifact.labels, examples, examples))
    encoded = encoded_set(served.home, domain, objective, examples, "texts", ignore)
    stack, early = UpperStack(root, StackSettings(dtype="fp32")), ladder.early
    (rows,) = served_rows(stack, artifact, (early.after,), objective, encoded, "texts", ignore)
    logits = [row[0] for row in rows.answered_by(early.head)]
    sure = confidences(logits, [Exit(early.after, early.head, early.temperature, None)] * len(logits))
    return replace(ladder, early=replace(early, threshold=statistics.median(sure)))


@pytest.fixture(scope="module")
def laddered(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Selection]]:
    """An hPLM whose ladder lets about half of its texts leave early, however it was trained."""
    home, registry, work = served.home, Registry.open(served.home), tmp_path_factory.mktemp("levels")
    model = registry.hplm("acme/topic")
    artifact = read_artifact(home.path / model.folder, RootFolder(home.root("tiny")).fingerprint)
    publish_artifact(home, registry, replace(artifact, hplm=NAME), model.domain, {})
    files = written(work / "train.jsonl", 200, 100), written(work / "held_out.jsonl", 600, 901)
    selecting = Selecting(NAME, LabelledFiles(*files), Target.of(agreement=0.3))
    found = select_ladder(home, registry, selecting, StackSettings(dtype="fp32"), ignore)
    assert found.ladder is not None, found.reason
    folder = home.path / found.entry.folder
    write_ladder(
        folder, halving(served, found.ladder, replace(artifact, hplm=NAME), files[1]), artifact.root_fingerprint
    )
    wait_until_served(served, [NAME])
    wait_until(lambda: is_live(served, found.entry))
    yield served, found
    registry.delete_hplm(NAME)


def test_levels_come_with_the_answers_over_both_protocols(laddered: tuple[Served, Selection]) -> None:
    served, _ = laddered
    rows = [(NAME, text.text) for text in sample_texts(300, seed=77)]
    by_protocol = []
    for url in (f"grpc://{served.grpc_url}", f"http://{served.http_url}"):
        with HplmClient(url) as client:
            levels = {level: client.infer_many(rows, level=level) for level in (None, "early", "full")}
        by_protocol.append({level: [each.to_dict() for each in answers] for level, answers in levels.items()})
        auto, early, full = (levels[level] for level in (None, "early", "full"))
        assert {answer.level for answer in auto} == {"early", "full"}
        assert {answer.level for answer in early} == {"early"} and {answer.level for answer in full} == {"full"}
        for answer, at_exit, whole in zip(auto, early, full, strict=True):
            assert isinstance(answer, Classification) and isinstance(at_exit, Classification)
            assert isinstance(whole, Classification)
            assert answer.confidence is not None and 0 < answer.confidence <= 1
            assert answer.label == (at_exit if answer.level == "early" else whole).label
            assert at_exit.doubtful == (answer.level == "full") and not answer.doubtful and not whole.doubtful
        share = sum(answer.level == "early" for answer in auto) / len(rows)
        assert 0.35 < share < 0.65
    over_grpc, over_http = ([each["level"] for each in one[None]] for one in by_protocol)
    assert over_grpc == over_http


def test_the_demo_shows_texts_that_leave_and_stay_and_a_burst(
    laddered: tuple[Served, Selection], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = laddered
    monkeypatch.setattr("demo.laddered.BURST_TEXTS", 80)
    texts = [Example(text.text, text.topic) for text in sample_texts(60, seed=79)]
    task = DemoTask(NAME, "farm", "?", [], texts, [])
    console = Console(width=160, record=True)
    shown = Laddered(served.home, Registry.open(served.home), task, served.grpc_url, console)
    shown.two_texts()
    shown.loads()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    rows = [line for line in lines if len(line) == 8]
    assert [row[2] for row in rows[:2]] == ["early", "full"]
    by_load = {(row[0].split(",")[0], row[1]): row[2:6] for row in rows[2:]}
    assert len(by_load) == 4 and by_load["60", "full"] == ["0%", "100%", "0%", "0%"]
    assert 0 < float(by_load["60", "auto"][0].strip("%")) < 100


def test_a_level_that_an_hplm_lacks_is_never_silently_full(laddered: tuple[Served, Selection]) -> None:
    served, _ = laddered
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        with pytest.raises(InvalidRequestError, match="hPLM 'acme/topic' has no level 'early'; it has full"):
            client.infer("acme/topic", "my cat is lovely", level="early")
        with pytest.raises(InvalidRequestError, match=f"hPLM '{NAME}' has no level 'students-3'; it has early, full"):
            client.infer(NAME, "my cat is lovely", level="students-3")
        with pytest.raises(InvalidRequestError, match="level 'students-9' is not one of auto, full, early, stud"):
            client.infer(NAME, "my cat is lovely", level="students-9")
        plain = client.infer("acme/topic", "my cat is lovely", level="full")
    assert (plain.level, plain.confidence, plain.doubtful) == (None, None, False)


def test_a_load_says_who_answered_and_how_many_are_right(
    laddered: tuple[Served, Selection], run_hplm: Callable[..., str], tmp_path: Path
) -> None:
    served, _ = laddered
    texts = f"{NAME}={written(tmp_path / 'texts.jsonl', 300, 902)}"
    load = ("loadtest", "overload", "--load", "60/s", "--duration", "2s", "--url", f"grpc://{served.grpc_url}")
    load = (*load, "--max-lateness", "5s", "--labelled", texts, "--json")
    lines = {}
    for level in ("auto", "early"):
        summary = json.loads(run_hplm(*load, "--level", level, "--out", tmp_path / level))
        assert summary["judged"] == summary["answered"] == summary["planned"] and 0.3 < summary["accuracy"] <= 1
        lines[level] = {line["level"]: line for line in summary["by_level"]}
    assert lines["auto"].keys() == {"early", "full"} and lines["auto"]["early"]["doubtful"] == 0
    assert lines["early"].keys() == {"early"} and lines["early"]["early"]["doubtful"] > 0
    other = ("--labelled", texts.replace(NAME, "acme/topic"), "--level", "early", "--out", tmp_path / "none")
    assert "has no level 'early'" in run_hplm(*load[:-3], *other)
    assert not (tmp_path / "none").exists()


def test_students_answer_by_number_and_as_many_as_the_load_allows(laddered: tuple[Served, Selection]) -> None:
    served, _ = laddered
    home, registry, root = served.home, Registry.open(served.home), RootFolder(served.home.root("tiny"))
    model, generator = registry.hplm("acme/topic"), torch.Generator().manual_seed(1)
    students = random_students(root, 2, 1, generator)
    artifact = replace(read_artifact(home.path / model.folder, root.fingerprint), hplm=STUDENTS_NAME)
    offered = {"set": students.fingerprint, "best": 2, "depth": students.shape.depth(root.geometry)}
    entry = publish_artifact(home, registry, artifact, model.domain, {"students": offered})
    own = random_student_adapters(students, artifact, generator)
    write_student_adapters(home.path / entry.folder, own)
    wait_until_served(served, [STUDENTS_NAME])
    try:
        for url in (f"grpc://{served.grpc_url}", f"http://{served.http_url}"):
            with HplmClient(url) as client:
                levels = ("students-1", "students-2", "students", "full")
                answers = [client.infer(STUDENTS_NAME, "my cat is lovely", level=level) for level in levels]
                assert [answer.level for answer in answers] == ["students-1", "students-2", "students-2", None]
                one, two, as_many, full = answers
                assert one.confidence is not None and not one.doubtful and full.confidence is None
                assert one.to_dict() != two.to_dict() == {**as_many.to_dict(), "request_id": two.request_id}
                with pytest.raises(InvalidRequestError, match="'students-3'; it has full, students, students-1, stud"):
                    client.infer(STUDENTS_NAME, "my cat is lovely", level="students-3")
                with pytest.raises(InvalidRequestError, match="'acme/topic' has no level 'students'; it has full"):
                    client.infer("acme/topic", "my cat is lovely", level="students")
    finally:
        registry.delete_hplm(STUDENTS_NAME)
        shutil.rmtree(students_folder(root.path))


def test_a_rollback_takes_the_ladder_back_within_a_second_or_two(laddered: tuple[Served, Selection]) -> None:
    served, found = laddered
    registry = Registry.open(served.home)
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        rollback_hplm(served.home, registry, NAME)
        wait_until(lambda: is_live(served, registry.hplm(NAME)))
        assert client.infer(NAME, "my cat is lovely").level is None
        rollback_hplm(served.home, registry, NAME, to=found.entry.version)
        wait_until(lambda: is_live(served, registry.hplm(NAME)))
        assert client.infer(NAME, "my cat is lovely").level in ("early", "full")


def test_levels_are_counted_on_the_metrics_endpoint(laddered: tuple[Served, Selection]) -> None:
    served, _ = laddered
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        client.infer_many([(NAME, text.text) for text in sample_texts(50, seed=78)])
    deadline_s = time.monotonic() + LIMIT_S
    wanted = [f'hplm_answers_total{{answer_level="{level}",reason="{reason}"}}' for level, reason in REASONS]
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(served.server.metrics_url) as page:
            metrics = page.read().decode()
        if all(each in metrics for each in wanted):
            return
        time.sleep(0.5)
    pytest.fail(f"not all of {wanted} are told")
