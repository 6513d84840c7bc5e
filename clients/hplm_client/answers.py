"""Answers as types, and their reading from the RESULT tensor; keys that we do not know are ignored."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hplm_client.errors import ServerError


@dataclass(frozen=True)
class Answer:
    """The fields of every answer.

    Attributes:
        hplm: The hPLM that answered, and its `version`.
        truncated: The text was cut at the root's limit.
        request_id: The ID that the request was sent with; rows of one request share it.
        exact: False where the server could not compute all that its tables lack, and answered from shorter fragments.
        level: The level that answered: `early` or `full` of the hPLM's ladder, `students-1`, `students-2` … of its
            students; None where all layers answered and there is no ladder.
        confidence: How likely the answer is right, where the level makes that known; of entities the least sure word's.
        doubtful: The row would have gone on, but for its deadline or because only this level was asked for.
    """

    hplm: str
    version: int
    task: str
    truncated: bool
    exact: bool
    level: str | None = dataclasses.field(default=None, init=False)
    confidence: float | None = dataclasses.field(default=None, init=False)
    doubtful: bool = dataclasses.field(default=False, init=False)
    request_id: str = dataclasses.field(default="", init=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Classification(Answer):
    label: str
    score: float
    scores: Mapping[str, float]

    def top_k(self, k: int) -> list[tuple[str, float]]:
        """The k likeliest labels with their scores, the likeliest first."""
        return sorted(self.scores.items(), key=lambda item: (-item[1], item[0]))[: max(0, k)]


@dataclass(frozen=True)
class Entity:
    """A span of the text as it was passed in: `text[start:end]`, in characters."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True)
class Entities(Answer):
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Value(Answer):
    value: float


def read_answer(raw: bytes, request_id: str = "") -> Answer:
    """Read one row of RESULT."""
    try:
        content = json.loads(raw)
        read = _BY_TASK.get(content["task"])
        if read is None:
            raise ServerError(f"the server answered with a task that this client does not know: {_shown(raw)}")
        answer = read(content, _common(content))
        set_later = {**_of_level(content), "request_id": request_id}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ServerError(f"the server's answer does not follow the wire contract: {_shown(raw)}") from error
    for name, value in set_later.items():
        object.__setattr__(answer, name, value)
    return answer


def _common(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hplm": _text(content["hplm"]),
        "version": int(content["version"]),
        "task": _text(content["task"]),
        "truncated": bool(content.get("truncated", False)),
        "exact": bool(content.get("exact", True)),
    }


def _of_level(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an hPLM with a ladder says of its answer."""
    level, confidence = content.get("level"), content.get("confidence")
    return {
        "level": None if level is None else _text(level),
        "confidence": None if confidence is None else _number(confidence),
        "doubtful": bool(content.get("doubtful", False)),
    }


def _classification(content: Mapping[str, Any], common: dict[str, Any]) -> Classification:
    scores = {_text(label): _number(score) for label, score in content["scores"].items()}
    return Classification(**common, label=_text(content["label"]), score=_number(content["score"]), scores=scores)


def _entities(content: Mapping[str, Any], common: dict[str, Any]) -> Entities:
    return Entities(**common, entities=tuple(_entity(entity) for entity in content["entities"]))


def _entity(content: Mapping[str, Any]) -> Entity:
    return Entity(
        start=int(content["start"]),
        end=int(content["end"]),
        text=_text(content["text"]),
        label=_text(content["label"]),
        score=_number(content["score"]),
    )


def _value(content: Mapping[str, Any], common: dict[str, Any]) -> Value:
    return Value(**common, value=_number(content["value"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number


def _shown(raw: bytes) -> str:
    return ascii(raw[:80].decode(errors="replace"))


_BY_TASK: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], Answer]] = {
    "classification": _classification,
    "ner": _entities,
    "regression": _value,
}
