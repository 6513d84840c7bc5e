"""What `hplm infer` reads and prints."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import cli
from backends.errors import InvalidArgumentError
from cli.asking import answer_as_json, lines_of, shown_answer
from cli.failures import described
from hplm_client import NotFoundError, RequestTimeoutError, UnavailableError, Value
from hplm_client.answers import read_answer


def test_lines_are_texts_and_a_wrong_one_is_named() -> None:
    assert lines_of([b"one\n", "zwölf\r\n".encode(), b"\n", b"last"]) == ["one", "zwölf", "", "last"]
    with pytest.raises(InvalidArgumentError, match="line 2 of stdin is not UTF-8"):
        lines_of([b"one\n", b"\xff\n"])


@pytest.mark.parametrize(("arguments", "source"), [((), "stdin"), (("-",), "stdin"), (("--file",), "texts.txt")])
def test_no_text_is_an_error(
    arguments: tuple[str, ...],
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "texts.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    given = [*arguments, "texts.txt"] if arguments == ("--file",) else arguments
    monkeypatch.setattr(sys, "argv", ["hplm", "infer", "acme/topic", *given])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2 and f"{source} holds no text" in capsys.readouterr().err


def test_an_error_keeps_its_place_among_the_answers() -> None:
    answer = Value(hplm="acme/value", version=2, task="regression", truncated=False, exact=True, value=1.5)
    error = RequestTimeoutError("too late")
    shown = answer_as_json(answer)
    assert shown["value"] == 1.5
    assert shown.keys() == answer.to_dict().keys() - {"level", "confidence", "doubtful"}
    assert answer_as_json(error) == {"error": {"code": error.code, "message": "too late"}}


def test_a_rejection_says_why_and_when_to_ask_again() -> None:
    told = "predicted to be answered in 30 ms; the deadline is in 1 ms"
    error = UnavailableError(told, reason="predicted_late", retry_after_s=0.029)
    facts = {"reason": "predicted_late", "retry_after_ms": 29}
    assert answer_as_json(error) == {"error": {"code": "UNAVAILABLE", "message": told, **facts}}
    failure = described(error)
    assert failure is not None
    assert failure.to_json() == {"code": "UNAVAILABLE", "message": told, "hint": None, "exit_code": 5, **facts}


@pytest.mark.parametrize(
    ("level", "confidence", "doubtful", "expected"),
    [
        ("early", 0.973, False, "early, 97% sure"),
        ("early", 0.51, True, "early, 51% sure, doubtful"),
        ("full", None, False, "full"),
    ],
)
def test_an_answer_of_a_ladder_says_its_level(
    level: str, confidence: float | None, doubtful: bool, expected: str
) -> None:
    said = {"level": level, **({} if confidence is None else {"confidence": confidence}), "doubtful": doubtful}
    content = {"hplm": "acme/area", "version": 2, "task": "classification", "label": "a", "score": 0.9, "scores": {}}
    answer = read_answer(json.dumps(content | said).encode())
    assert answer_as_json(answer).items() >= {"level": level, "confidence": confidence, "doubtful": doubtful}.items()
    assert shown_answer("text", answer)["level"] == expected


def test_of_an_unknown_hplm_the_command_says_what_shows_the_others() -> None:
    failure = described(NotFoundError("hPLM 'nobody/nothing' does not exist"))
    assert failure is not None and failure.exit_code == 3
    assert failure.message == "hPLM 'nobody/nothing' does not exist; hplm list shows those there are"
