"""`bench.fuzz` on the wire: cases repeat by their names, wrong answers are seen; planted bugs fit the code."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from bench.kit.fuzz.bugs import BUGS, QUICK
from bench.kit.fuzz.bytes_tensor import element, elements
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.exchange import Fate, Outcome
from bench.kit.fuzz.grpc_messages import good_tensors, infer_message
from bench.kit.fuzz.json_tree import Members, Raw, deep, mutate, written
from bench.kit.fuzz.neighbours import Neighbour
from bench.kit.fuzz.planted import PROJECT, plant
from bench.kit.fuzz.rule import Case
from bench.kit.fuzz.targets import TARGETS
from bench.kit.fuzz.vocabulary import Vocabulary
from bench.kit.fuzz.wire import figures_of, rows_of
from bench.kit.fuzz.wire_case import GrpcCase, HttpCase, RelayCase
from bench.kit.fuzz.wire_groups import KINDS, Harm, Played, names_of
from loadtest.errors import RunError

VOCABULARY = Vocabulary(["acme/topic", "globex/mood"], ["a cat", "two saws"])
ANSWERS = [{"hplm": "acme/topic", "label": "animals", "score": 0.75}, {"hplm": "globex/mood", "score": 0.5}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_the_same_each_time_and_another_with_another_number(kind: str) -> None:
    make, _ = KINDS[kind]
    cases = [make(Draw(Case(kind, 7, number)), VOCABULARY) for number in range(12)]
    again = [make(Draw(Case(kind, 7, number)), VOCABULARY) for number in range(12)]
    if all(isinstance(case, RelayCase) for case in cases):
        answer = service_pb2.ModelInferResponse(raw_output_contents=[bytes(56)])
        answer.outputs.add(name="HIDDEN", datatype="FP16", shape=[1, 7, 4])
        content = answer.SerializeToString()
        shown = [[case.relayed(content) for case in some if isinstance(case, RelayCase)] for some in (cases, again)]
    else:
        shown = [list(map(repr, cases)), list(map(repr, again))]
    assert shown[0] == shown[1]
    assert len(set(map(str, shown[0]))) > 3


def test_targets_of_all_parts_have_names_of_their_own() -> None:
    names = [*TARGETS, *KINDS, *(bug.name for bug in BUGS)]
    assert len(set(names)) == len(names)


def test_a_group_has_cases_of_many_kinds_with_numbers_of_their_own() -> None:
    groups = [names_of(3, group) for group in range(40)]
    assert names_of(3, 5) == groups[5]
    names = [name for group in groups for name in group]
    assert len({name.number for name in names}) == len(names)
    assert len({name.target for name in names}) >= 10
    assert {name.target for name in names_of(3, 0, "http-binary")} == {"http-binary"}


def test_json_holds_what_it_must_not() -> None:
    tree = Members([("a", Raw("NaN")), ("a", [1, "é", None])])
    assert written(tree) == '{"a":NaN,"a":[1,"\\u00e9",null]}'
    for number in range(200):
        draw = Draw(Case("json", 1, number))
        mutate(draw, tree, 2)
        assert isinstance(written(tree), str)
    assert deep(Draw(Case("deep", 1, 1)), 50).count("1") == 1


def test_lengths_of_elements_are_wrong_unless_they_are_to_be_right() -> None:
    right = element(b"cat") + element(b"")
    assert right == struct.pack("<I", 3) + b"cat" + bytes(4)
    wrong = [elements(Draw(Case("lengths", 1, number)), [b"cat", b""]) for number in range(300)]
    assert sum(content != right for content in wrong) > 290
    assert elements(Draw(Case("lengths", 1, 0)), [b"cat", b""], is_right=True) == right


def grpc_answer(answers: list[object]) -> bytes:
    content = b"".join(element(json.dumps(answer).encode()) for answer in answers)
    return bytes(service_pb2.ModelInferResponse(raw_output_contents=[content]).SerializeToString())


def http_answer(answers: list[object]) -> bytes:
    return json.dumps({"outputs": [{"name": "RESULT", "data": [json.dumps(answer) for answer in answers]}]}).encode()


@pytest.mark.parametrize("via", ["gRPC", "HTTP"])
def test_a_neighbour_is_harmed_by_any_other_answer(via: str) -> None:
    message = infer_message("hplm", good_tensors([("acme/topic", "a cat")])).SerializeToString()
    neighbour = Neighbour(GrpcCase(message) if via == "gRPC" else HttpCase("/v2", b""), ANSWERS)
    answer = grpc_answer if via == "gRPC" else http_answer

    def harm(answers: list[object]) -> str | None:
        return neighbour.harm(Outcome(Fate.ANSWERED, answer(answers)))

    first, second = ANSWERS
    assert harm([first, second]) is None
    assert harm([{**first, "score": 0.750001}, second]) is None
    assert harm([second, first]) is not None
    assert harm([first]) is not None
    assert harm([{**first, "score": 0.76}, second]) is not None
    assert harm([{**first, "label": "tools"}, second]) is not None
    for fate in (Fate.REJECTED, Fate.CLOSED, Fate.SILENT):
        assert neighbour.harm(Outcome(fate, b"why")) == f"{fate}: why"


def test_figures_and_rows_tell_what_went_wrong() -> None:
    played, other = Played(), Played()
    played.fates.update({("http-json", Fate.REJECTED): 3, ("http2-frames", Fate.CLOSED): 1})
    other.fates.update({("http-json", Fate.ANSWERED): 2})
    other.neighbours, other.harmed = 8, 1
    other.harms = [Harm([Case("http-json", 1, 4)], "rejected: no")]
    other.silent = [Case("http-json", 1, 5)]
    played.add(other)
    figures, rows = figures_of(played, 1, 2), rows_of(played)
    assert figures == {
        "wire_cases": 6,
        "wire_crashes": 1,
        "neighbours_asked": 8,
        "neighbours_harmed": 1,
        "wire_silent": 1,
        "wire_defects": 2,
    }
    assert [row["target"] for row in rows] == ["http-json", "http2-frames", "http-json:1:4", "http-json:1:5"]
    assert rows[0]["cases"] == 5 and rows[0][Fate.ANSWERED] == 2


def test_planted_bugs_fit_the_code_and_their_tests_exist(tmp_path: Path) -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10
    assert set(QUICK) <= {bug.name for bug in BUGS}
    for bug in BUGS:
        copied = tmp_path / bug.name / bug.path
        copied.parent.mkdir(parents=True)
        copied.write_text((PROJECT / bug.path).read_text(encoding="utf-8"), encoding="utf-8")
        plant(tmp_path / bug.name, bug)
        compile(copied.read_text(encoding="utf-8"), str(copied), "exec")
        for test in bug.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (PROJECT / path).read_text(encoding="utf-8"), test


def test_a_bug_that_no_longer_fits_names_its_file(tmp_path: Path) -> None:
    bug = replace(random.Random(1).choice(BUGS), right="no such text")
    (tmp_path / bug.path).parent.mkdir(parents=True)
    (tmp_path / bug.path).write_text("other text", encoding="utf-8")
    with pytest.raises(RunError, match=bug.path):
        plant(tmp_path, bug)
