"""Good requests with known answers, asked all the time while others send cases."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

from bench.kit.fuzz.exchange import Exchange, Fate, Outcome
from bench.kit.fuzz.grpc_messages import good_tensors, infer_message
from bench.kit.fuzz.vocabulary import Vocabulary
from bench.kit.fuzz.wire_case import GrpcCase, HttpCase
from builder.export.model_names import ENSEMBLE
from loadtest.errors import RunError

_TOLERANCE = 1e-4
"""Of a score: rows that share a batch move the last digits of a product."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Neighbour:
    """A good request, and the answers of its rows when it was asked alone."""

    case: GrpcCase | HttpCase
    expected: Sequence[Any]

    def harm(self, outcome: Outcome) -> str | None:
        """Return what is wrong with an outcome."""
        if outcome.fate is not Fate.ANSWERED:
            return f"{outcome.fate}: {outcome.content.decode(errors='replace')[:300]}"
        answers = _answers(self.case, outcome.content)
        return None if is_same(answers, self.expected) else f"answered {answers}, not {self.expected}"


def learn_neighbours(exchange: Exchange, vocabulary: Vocabulary, count: int, seed: int) -> list[Neighbour]:
    """Ask requests of one to three rows alone, over gRPC and HTTP by turns; all must be answered."""
    rng, neighbours = random.Random(seed), []
    for number in range(count):
        size = rng.choice((1, 1, 1, 2, 3))
        rows = list(zip(rng.choices(vocabulary.hplms, k=size), rng.choices(vocabulary.texts, k=size), strict=True))
        case = _grpc_case(rows) if number % 2 == 0 else _http_case(rows)
        outcome = exchange.ask(case)
        if outcome.fate is not Fate.ANSWERED:
            raise RunError(f"a good request was {outcome.fate}: {outcome.content.decode(errors='replace')[:300]}")
        answers = _answers(case, outcome.content)
        if [answer.get("hplm") for answer in answers] != [hplm for hplm, _ in rows]:
            raise RunError(f"a good request to {rows} was answered {answers}")
        neighbours.append(Neighbour(case, answers))
    return neighbours


def is_same(answer: Any, expected: Any) -> bool:
    """Whether two answers are the same, but for the last digits of numbers."""
    match expected:
        case dict():
            return (
                isinstance(answer, dict)
                and answer.keys() == expected.keys()
                and _all_same(answer.values(), (expected[key] for key in answer))
            )
        case list():
            return isinstance(answer, list) and len(answer) == len(expected) and _all_same(answer, expected)
        case float():
            return isinstance(answer, float | int) and math.isclose(answer, expected, rel_tol=0.0, abs_tol=_TOLERANCE)
        case _:
            return bool(answer == expected)


def _all_same(answers: Any, expected: Any) -> bool:
    return all(is_same(one, other) for one, other in zip(answers, expected, strict=True))


def _grpc_case(rows: Sequence[tuple[str, str]]) -> GrpcCase:
    return GrpcCase(infer_message(ENSEMBLE, good_tensors(rows)).SerializeToString())


def _http_case(rows: Sequence[tuple[str, str]]) -> HttpCase:
    columns = zip(("MODEL", "TEXT"), zip(*rows, strict=True), strict=True)
    inputs = [{"name": name, "shape": [len(rows), 1], "datatype": "BYTES", "data": data} for name, data in columns]
    return HttpCase(f"/v2/models/{ENSEMBLE}/infer", json.dumps({"inputs": inputs}).encode())


def _answers(case: GrpcCase | HttpCase, content: bytes) -> list[Any]:
    if isinstance(case, HttpCase):
        return [json.loads(answer) for answer in json.loads(content)["outputs"][0]["data"]]
    (tensor,) = service_pb2.ModelInferResponse.FromString(content).raw_output_contents
    answers, at = [], 0
    while at < len(tensor):
        (length,) = _LENGTH.unpack_from(tensor, at)
        at += _LENGTH.size + length
        answers.append(json.loads(tensor[at - length : at]))
    return answers
