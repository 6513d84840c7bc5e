"""What is asked of tenants with ladders, and how: alone, under load, until nothing more fits, and beyond it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.tasks.laddered import task_of
from builder.construct.tasks.examples import Example, TaggedSentence
from hplm_client import Answer, Classification, Entities, HplmClient, Request
from loadtest.in_process import Played, play
from loadtest.schedule import Row, Schedule
from loadtest.sender import Ask, OpenAsk, Target, open_sdk
from workload.arrivals import PoissonArrivals

_TIMEOUT_S = 300.0
_Noted = list[tuple[tuple[str, bytes], Answer]]
"""What was answered, by hPLM and text."""
Answers = dict["Question", Answer]
ByTask = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Question:
    """A text for a tenant's hPLM, and what is right."""

    hplm: str
    example: Example

    @property
    def task(self) -> str:
        return task_of(self.hplm)

    @property
    def text(self) -> str:
        """The text as rows of a load have it: a TAB between the halves of a pair."""
        example = self.example
        return example.text if example.text_pair is None else f"{example.text}\t{example.text_pair}"

    def is_right(self, answer: Answer) -> bool:
        """Whether the label is the example's, or the entities are all of its and no others."""
        if isinstance(self.example, TaggedSentence):
            return isinstance(answer, Entities) and spans_of(answer) == spans_of_example(self.example)
        return isinstance(answer, Classification) and answer.label == str(self.example.label)


def spans_of(answer: Entities) -> frozenset[tuple[int, int, str]]:
    return frozenset((each.start, each.end, each.label) for each in answer.entities)


def spans_of_example(example: TaggedSentence) -> frozenset[tuple[int, int, str]]:
    return frozenset((each.start, each.end, each.label) for each in example.entities())


def is_same(one: Answer, other: Answer) -> bool:
    """Whether both name the same label, or the same entities."""
    if isinstance(one, Entities) and isinstance(other, Entities):
        return spans_of(one) == spans_of(other)
    return isinstance(one, Classification) and isinstance(other, Classification) and one.label == other.label


@dataclass(frozen=True)
class Overload:
    """Counts of requests with deadlines: how many were answered, and how many of the answers are right or doubtful.

    Answers that come after their deadlines are none: the SDK lets none pass.
    """

    requests: int
    answered: int
    right: int
    doubtful: int


class Tenants:
    """hPLMs, and the test texts of each one's task."""

    def __init__(self, hplms: Sequence[str], tests: Mapping[str, Sequence[Example]]) -> None:
        self._hplms, self._tests = hplms, tests

    def every_text(self, rng: np.random.Generator) -> list[Question]:
        """Each test text once, those of a task for its tenants in turn, all tasks mixed."""
        found = []
        for task, examples in self._tests.items():
            own = [hplm for hplm in self._hplms if task_of(hplm) == task]
            found += [Question(own[number % len(own)], example) for number, example in enumerate(examples)]
        return [found[index] for index in rng.permutation(len(found))]

    def drawn(self, count: int, rng: np.random.Generator) -> list[Question]:
        """Tenants and their texts, drawn uniformly."""
        hplms = [self._hplms[index] for index in rng.integers(len(self._hplms), size=count)]
        numbers = rng.random(count)
        tests = [self._tests[task_of(hplm)] for hplm in hplms]
        return [
            Question(hplm, texts[int(number * len(texts))])
            for hplm, texts, number in zip(hplms, tests, numbers, strict=True)
        ]


class LevelsLoad:
    """Asks one server for levels, over gRPC."""

    def __init__(self, url: str) -> None:
        self._url = url

    def answers(self, questions: Sequence[Question], level: str, callers: int) -> Answers:
        """Ask each question once, by callers who each wait for an answer before they ask again."""
        noted: _Noted = []
        self._saturated(questions, level, callers, _noting(noted))
        answers = dict(noted)
        return {each: answers[each.hplm, _request(each, level).wire_text] for each in questions}

    def alone(self, questions: Sequence[Question], levels: Sequence[str]) -> dict[str, tuple[Answers, ByTask]]:
        """Ask one question at a time, for each level in turn: answers and milliseconds by level."""
        found: dict[str, tuple[Answers, dict[str, list[float]]]] = {level: ({}, {}) for level in levels}
        with HplmClient(f"grpc://{self._url}", timeout_s=_TIMEOUT_S, rows_per_request=1) as client:
            for number, question in enumerate(questions):
                for level in levels if number % 2 else levels[::-1]:
                    request, (answers, took_ms) = _request(question, level), found[level]
                    sent_s = time.perf_counter()
                    answers[question] = client.infer(request.hplm, request.text, request.text_pair, level=level)
                    took_ms.setdefault(question.task, []).append(1e3 * (time.perf_counter() - sent_s))
        return {level: (answers, took_ms) for level, (answers, took_ms) in found.items()}

    def rows_per_s(self, questions: Sequence[Question], level: str, in_flight: int) -> float:
        return self._saturated(questions, level, in_flight).rows_per_s(min(in_flight, len(questions) // 4))

    def loaded(self, questions: Sequence[Question], at_s: NDArray[np.float64], level: str) -> ByTask:
        """Ask at these times, however many wait: milliseconds of each task's requests."""
        rows = [Row(at, each.hplm, each.text) for at, each in zip(at_s.tolist(), questions, strict=True)]
        played = play(Target(self._url, timeout_s=_TIMEOUT_S), _schedule(rows, questions, level))
        played.require_all_answered()
        tasks = np.array([task_of(hplm) for hplm in played.requests.hplms.tolist()])
        return {task: (1e3 * played.requests.latency_s[tasks == task]).round(3).tolist() for task in sorted(set(tasks))}

    def overloaded(
        self,
        questions: Sequence[Question],
        at_s: NDArray[np.float64],
        deadlines_ms: NDArray[np.int64],
        level: str,
    ) -> Overload:
        """Ask at these times, more than can be answered."""
        due = zip(at_s.tolist(), questions, deadlines_ms.tolist(), strict=True)
        rows = [Row(at, each.hplm, each.text, deadline_ms) for at, each, deadline_ms in due]
        noted: _Noted = []
        played = play(
            Target(self._url, timeout_s=_TIMEOUT_S), _schedule(rows, questions, level), open_ask=_noting(noted)
        )
        played.require_none_failed()
        asked = {(each.hplm, _request(each, level).wire_text): each for each in questions}
        right = sum(asked[key].is_right(answer) for key, answer in noted)
        return Overload(len(rows), len(noted), right, sum(answer.doubtful for _, answer in noted))

    def _saturated(
        self, questions: Sequence[Question], level: str, in_flight: int, open_ask: OpenAsk = open_sdk
    ) -> Played:
        rows = [Row(0.0, each.hplm, each.text) for each in questions]
        played = play(
            Target(self._url, timeout_s=_TIMEOUT_S), _schedule(rows, questions, level), in_flight, open_ask=open_ask
        )
        played.require_all_answered()
        return played


def poisson_times_s(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return PoissonArrivals(rate_per_s).times_s(duration_s, rng)


def _schedule(rows: Sequence[Row], questions: Sequence[Question], level: str) -> Schedule:
    pairs = frozenset(each.hplm for each in questions if each.example.text_pair is not None)
    return replace(Schedule.of(rows, pairs), levels=(level,))


def _request(question: Question, level: str) -> Request:
    return Request(question.hplm, question.example.text, question.example.text_pair, level=level)


def _noting(noted: _Noted) -> OpenAsk:
    @asynccontextmanager
    async def open_noting(target: Target) -> AsyncIterator[Ask]:
        async with open_sdk(target) as ask:

            async def ask_and_note(request: Request) -> Answer | None:
                answer = await ask(request)
                if answer is not None:
                    noted.append(((request.hplm, request.wire_text), answer))
                return answer

            yield ask_and_note

    return open_noting
