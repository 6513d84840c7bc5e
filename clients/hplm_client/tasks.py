"""Questions of one task: the same hPLM for all texts, and answers of one type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, Union

from hplm_client.answers import Answer, Classification, Entities, Value
from hplm_client.errors import InvalidRequestError
from hplm_client.request import Request

Text = Union[str, tuple[str, str]]
"""A text, or the two of a pair."""
AnswerT = TypeVar("AnswerT", Classification, Entities, Value)
_METHODS: dict[str, str] = {"classification": "classify", "ner": "entities", "regression": "score"}


def requests_for(hplm: str, texts: Sequence[Text]) -> list[Request]:
    return [_request(hplm, text) for text in texts]


def _request(hplm: str, text: Text) -> Request:
    if isinstance(text, str):
        return Request(hplm, text)
    if isinstance(text, (tuple, list)) and len(text) == 2:
        return Request(hplm, *text)
    raise InvalidRequestError(
        f"a text must be a str, or a tuple of two, and several a list of them; not {type(text).__name__}", hplm
    )


def checked(kind: type[AnswerT], answers: Sequence[Answer]) -> list[AnswerT]:
    """Return the answers as the type that was asked for.

    Raises:
        InvalidRequestError: The hPLM has another task.
    """
    return [_checked(kind, answer) for answer in answers]


def _checked(kind: type[AnswerT], answer: Answer) -> AnswerT:
    if not isinstance(answer, kind):
        method = _METHODS.get(answer.task, "infer")
        raise InvalidRequestError(f"{answer.hplm} is a model for {answer.task}; ask it with {method}()", answer.hplm)
    return answer
