from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from hplm_client import Classification, Entities, Entity, ServerError, Value
from hplm_client.answers import read_answer
from hplm_client.codec import Call, inputs_of
from seeds import SEED

COMMON = {"hplm": "acme/returns", "version": 4}


def raw(**content: object) -> bytes:
    return json.dumps({**COMMON, **content}).encode()


def test_classification() -> None:
    scores = {"yes": 0.75, "nö": 0.25}
    answer = read_answer(raw(task="classification", label="yes", score=0.75, scores=scores, later="key"))
    assert answer == Classification(
        **COMMON,
        task="classification",
        truncated=False,
        exact=True,
        label="yes",
        score=0.75,
        scores=scores,  # type: ignore[arg-type]
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.version = 5  # type: ignore[misc]


def test_what_a_ladder_says_of_an_answer() -> None:
    content = {"task": "regression", "value": 1.5}
    plain = read_answer(raw(**content))
    assert (plain.level, plain.confidence, plain.doubtful) == (None, None, False)
    told = read_answer(raw(**content, level="early", confidence=0.75, doubtful=True))
    assert (told.level, told.confidence, told.doubtful) == ("early", 0.75, True)
    assert told != plain and told.to_dict()["level"] == "early"


def test_entities() -> None:
    entity = {"start": 0, "end": 3, "text": "Åsa", "label": "PER", "score": 1}
    answer = read_answer(raw(task="ner", entities=[{**entity, "tomorrow": 1}, {**entity, "start": 5}], truncated=True))
    assert isinstance(answer, Entities) and answer.truncated
    assert answer.entities == (
        Entity(start=0, end=3, text="Åsa", label="PER", score=1.0),
        Entity(start=5, end=3, text="Åsa", label="PER", score=1.0),
    )
    assert read_answer(raw(task="ner", entities=[])) == Entities("acme/returns", 4, "ner", False, True, ())


def test_value() -> None:
    answer = read_answer(raw(task="regression", value=2, unknown={"a": [1]}))
    assert (
        isinstance(answer, Value) and answer.value == 2.0 and isinstance(answer.value, float) and not answer.truncated
    )


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        b'{"task": "regression"}',
        raw(task="regression"),
        raw(task="regression", value="much"),
        raw(task=["regression"], value=1),
        raw(task="classification", label="a", score=1, scores=[1, 2]),
        raw(task="ner", entities=[{"start": 0}]),
        raw(task="poetry", lines=[]),
    ],
)
def test_answers_outside_the_contract_are_server_errors(row: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        read_answer(row)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", [tritonclient.grpc, tritonclient.http])
def test_both_libraries_put_the_same_bytes_on_the_wire(library: object) -> None:
    generator = random.Random(SEED)
    texts = tuple(generator.randbytes(generator.randrange(1, 50)) + b"\0" for _ in range(generator.randrange(1, 9)))
    tensors = inputs_of(Call("acme/returns", texts, {}), library.InferInput)  # type: ignore[attr-defined]
    expected = {"MODEL": [b"acme/returns"] * len(texts), "TEXT": list(texts)}
    for tensor in tensors:
        content = tensor._get_content() if library is tritonclient.grpc else tensor._get_binary_data()
        rows = tritonclient.utils.deserialize_bytes_tensor(content)
        assert list(tensor.shape()) == [len(texts), 1] and tensor.datatype() == "BYTES"
        assert np.array_equal(rows, np.array(expected[tensor.name()], dtype=np.object_))
