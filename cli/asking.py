"""Asking a running server: from what is typed to a request, and from an answer to a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from backends.errors import InvalidArgumentError
from cli.failures import rejection_facts
from hplm_client import Answer, Classification, ClientError, Entities, InvalidRequestError, Value
from hplm_client.workload import RequestLike

_SHOWN_CHARACTERS = 60


def lines_of(stdin: Iterable[bytes]) -> list[str]:
    lines = []
    for number, line in enumerate(stdin, start=1):
        try:
            lines.append(line.rstrip(b"\r\n").decode())
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"line {number} of stdin is not UTF-8") from error
    return lines


def decoded(line: bytes, source: str, number: int) -> str | InvalidRequestError:
    """Read a line of a file; one that is not UTF-8 is an error of its own."""
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return InvalidRequestError(f"line {number} of {source} is not UTF-8")


def request_of(hplm: str, text: str, pair: str | None) -> RequestLike:
    """A text with a TAB is a pair; an hPLM of single texts reads that TAB as a blank."""
    first, _, second = text.partition("\t")
    if pair is None and first.strip() and second.strip():
        return (hplm, first, second.replace("\t", " "))
    return (hplm, text) if pair is None else (hplm, text, pair)


def answer_as_json(outcome: Answer | ClientError) -> dict[str, Any]:
    """Return an answer, or the error in its stead, so that the answers of other texts keep their positions."""
    if isinstance(outcome, ClientError):
        return {"error": {"code": outcome.code, "message": str(outcome), **rejection_facts(outcome)}}
    fields = asdict(outcome)
    if outcome.level is None:  # it has no ladder, so there is nothing to tell of it
        fields = {name: value for name, value in fields.items() if name not in ("level", "confidence", "doubtful")}
    return fields


def shown_answer(text: str, answer: Answer) -> dict[str, str]:
    """A row of a table."""
    shown = text if len(text) < _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "…"
    match answer:
        case Classification():
            return {"text": shown, "answer": answer.label, "score": f"{answer.score:.3f}", **_shown_level(answer)}
        case Entities():
            found = [f"{each.label} {each.text!r} at {each.start} ({each.score:.2f})" for each in answer.entities]
            return {"text": shown, "entities": "\n".join(found) or "none", **_shown_level(answer)}
        case Value():
            return {"text": shown, "value": f"{answer.value:g}"}
        case _:
            return {"text": shown, "answer": str(answer)}


def _shown_level(answer: Answer) -> dict[str, str]:
    if answer.level is None:
        return {}
    confidence = "" if answer.confidence is None else f", {answer.confidence:.0%} sure"
    return {"level": f"{answer.level}{confidence}{', doubtful' if answer.doubtful else ''}"}
