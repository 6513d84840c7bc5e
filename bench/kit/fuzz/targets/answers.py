"""The SDK's reading: answers, faults in words, and requests that users make."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bench.kit.fuzz.arrays import bad_array
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value, bad_json, encoded
from bench.kit.fuzz.target import Target
from hplm_client.answers import read_answer
from hplm_client.codec import Call, rows_of
from hplm_client.errors import ClientError
from hplm_client.faults import from_status
from hplm_client.request import Request

_COMMON = {"hplm": "acme/topic", "version": 1}
_ANSWERS = (
    {**_COMMON, "task": "classification", "label": "a", "score": 0.5, "scores": {"a": 0.5, "b": 0.5}, "level": "full"},
    {**_COMMON, "task": "ner", "entities": [{"start": 0, "end": 3, "text": "cat", "label": "animal", "score": 0.9}]},
    {**_COMMON, "task": "regression", "value": 1.5, "confidence": 0.4, "doubtful": True},
)
_STATUSES = ("INVALID_ARGUMENT", "UNAVAILABLE", "NOT_FOUND", "INTERNAL", "400", "503", "404", "429", "", "x")
_MESSAGES = (
    'in ensemble \'hplm\', the queue is full: 9 rows wait {"reason": "queue_full", "retry_after_ms": 200}',
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8001",
    "[request id: 7] unauthorised: the token is not one of this server's",
)
_CALL = Call("acme/topic", (b"a", b"b"), {})
_ROWS = np.array([b"{}", b"[]"], dtype=np.object_)


class _Result:
    """What a transport gives, with any tensor in it."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def as_numpy(self, name: str) -> Any:
        return self._tensor


class Answers(Target):
    """Rows of RESULT, statuses and messages as proxies and other servers may send them; arguments of any type."""

    name = "answers"
    cases = 200_000
    rejections = (ClientError,)

    def attempt(self, draw: Draw) -> None:
        match draw.randrange(5):
            case 0 | 1:
                answer = read_answer(encoded(draw, bad_json(draw, draw.choice(_ANSWERS))))
                json.dumps(answer.to_dict())
            case 2:
                raise from_status(draw.choice(_STATUSES), draw.choice((None, draw.text(_MESSAGES))), "localhost:8001")
            case 3:
                rows_of(_Result(None if draw.happens(0.1) else bad_array(draw, _ROWS)), _CALL)
            case _:
                hplm, text, pair, deadline_ms, level = (any_value(draw) for _ in range(5))
                request = Request(
                    "acme/topic" if draw.happens(0.7) else hplm,
                    "a text" if draw.happens(0.6) else text,
                    None if draw.happens(0.7) else pair,
                    None if draw.happens(0.7) else deadline_ms,
                    None if draw.happens(0.7) else level,
                )
                request.wire_text.decode()
