"""Asking a running server: from what is typed to a request, and from an answer to a line."""

from __future__ import annotations

from clients import Answer, Classification, Entities, Value
from clients.workload import RequestLike

_SHOWN_CHARACTERS = 60


def request_of(hplm: str, text: str, pair: str | None) -> RequestLike:
    """A text whose halves a TAB parts is a pair; an hPLM of single texts reads that TAB as a blank."""
    first, _, second = text.partition("\t")
    if pair is None and first.strip() and second.strip():
        return (hplm, first, second.replace("\t", " "))
    return (hplm, text) if pair is None else (hplm, text, pair)


def shown_answer(text: str, answer: Answer) -> dict[str, str]:
    """A row of a table."""
    shown = text if len(text) < _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "…"
    match answer:
        case Classification():
            return {"text": shown, "answer": answer.label, "score": f"{answer.score:.3f}"}
        case Entities():
            found = [f"{each.label} {each.text!r} at {each.start} ({each.score:.2f})" for each in answer.entities]
            return {"text": shown, "entities": "\n".join(found) or "none"}
        case Value():
            return {"text": shown, "value": f"{answer.value:g}"}
        case _:
            return {"text": shown, "answer": str(answer)}
