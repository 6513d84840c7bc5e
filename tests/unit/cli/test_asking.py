"""What `hplm infer` reads and prints."""

from __future__ import annotations

import pytest

from backends.errors import InvalidArgumentError
from cli.asking import answer_as_json, lines_of
from hplm_client import RequestTimeoutError, Value


def test_lines_are_texts_and_a_wrong_one_is_named() -> None:
    assert lines_of([b"one\n", "zwölf\r\n".encode(), b"\n", b"last"]) == ["one", "zwölf", "", "last"]
    with pytest.raises(InvalidArgumentError, match="line 2 of stdin is not UTF-8"):
        lines_of([b"one\n", b"\xff\n"])


def test_an_error_keeps_its_place_among_the_answers() -> None:
    answer = Value(hplm="acme/value", version=2, task="regression", truncated=False, exact=True, value=1.5)
    error = RequestTimeoutError("too late")
    assert answer_as_json(answer) == answer.to_dict()
    assert answer_as_json(error) == {"error": {"code": error.code, "message": "too late"}}
