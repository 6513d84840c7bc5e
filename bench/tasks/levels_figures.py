"""Counts and times that `bench.levels` measures, and the figures and the table that come of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from backends.stack_key import FULL as FULL_LEVEL
from backends.wire import AUTO, EARLY
from bench.tasks.laddered import LadderedTask
from bench.tasks.levels_load import Answers, ByTask, is_same

LEVELS = (FULL_LEVEL, AUTO)


@dataclass(frozen=True)
class Round:
    """What requests of one round took, by level; times by task."""

    alone_ms: Mapping[str, ByTask]
    loaded_ms: Mapping[str, ByTask]
    rows_per_s: Mapping[str, float]
    overloaded: Mapping[str, Mapping[str, int]]
    """The counts of each `Overload`."""

    def alone_ratio(self) -> float:
        return mean(_all(self.alone_ms[AUTO])) / mean(_all(self.alone_ms[FULL_LEVEL]))

    def p99_ratio(self) -> float:
        last = {level: float(np.percentile(_all(self.alone_ms[level]), 99)) for level in LEVELS}
        return last[AUTO] / last[FULL_LEVEL]

    def loaded_ratio(self) -> float:
        return mean(_all(self.loaded_ms[AUTO])) / mean(_all(self.loaded_ms[FULL_LEVEL]))

    def rate_ratio(self) -> float:
        return self.rows_per_s[AUTO] / self.rows_per_s[FULL_LEVEL]

    def overloaded_ratio(self, count: str) -> float:
        """Return how many answers, or right ones, there are to as many requests, over those of all layers."""
        return self.overloaded[AUTO][count] / max(1, self.overloaded[FULL_LEVEL][count])


@dataclass(frozen=True)
class FirstAnswers:
    """The first answers to all test texts, and those to some of them alone and of a server without ladders."""

    ladder: Answers
    full: Answers
    ladder_alone: Answers
    full_alone: Answers
    plain_alone: Answers

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each task, whose counts add up."""
        return [self._row(task) for task in sorted({question.task for question in self.ladder})]

    def _row(self, task: str) -> dict[str, Any]:
        own = [question for question in self.ladder if question.task == task]
        changed = [
            question.is_right(self.full[question]) - question.is_right(self.ladder[question]) for question in own
        ]
        alone = [question for question in self.ladder_alone if question.task == task]
        return {
            "task": task,
            "texts": len(own),
            "harmed": changed.count(1),
            "helped": changed.count(-1),
            "full right": sum(question.is_right(self.full[question]) for question in own),
            "early": sum(self.ladder[question].level == EARLY for question in own),
            "inexact": sum(not self.ladder[question].exact for question in own),
            "alone": len(alone),
            "same level": sum(self.ladder[each].level == self.ladder_alone[each].level for each in alone),
            "same label": sum(is_same(self.full_alone[each], self.plain_alone[each]) for each in alone),
        }


def figures_of(first: Sequence[Mapping[str, Any]], rounds: Sequence[Round], tasks: int) -> dict[str, float]:
    alone = sum(row["alone"] for row in first)
    return {
        "drop_points_mean": mean(_drop(row) for row in first),
        "worst_drop_points": max(_drop(row) for row in first),
        "lone_latency_ratio": median(each.alone_ratio() for each in rounds),
        "latency_ratio_at_0_8": median(each.loaded_ratio() for each in rounds),
        "rows_per_s_ratio": median(each.rate_ratio() for each in rounds),
        "p99_ratio_lone": median(each.p99_ratio() for each in rounds),
        "same_level_share": sum(row["same level"] for row in first) / alone,
        "full_same_label_share": sum(row["same label"] for row in first) / alone,
        "answered_early_mean": mean(row["early"] / row["texts"] for row in first),
        "tasks_with_ladder_share": len(first) / tasks,
        "inexact_answers": float(sum(row["inexact"] for row in first)),
        "full_rows_per_s": median(each.rows_per_s[FULL_LEVEL] for each in rounds),
        **_overload_figures(rounds),
    }


def _overload_figures(rounds: Sequence[Round]) -> dict[str, float]:
    def part(level: str, count: str) -> float:
        found = [each.overloaded[level] for each in rounds]
        return sum(each[count] for each in found) / max(1, sum(each["answered"] for each in found))

    return {
        "answered_2x_over_full": median(each.overloaded_ratio("answered") for each in rounds),
        "right_2x_over_full": median(each.overloaded_ratio("right") for each in rounds),
        "accuracy_2x": part(AUTO, "right"),
        "accuracy_2x_full": part(FULL_LEVEL, "right"),
        "doubtful_2x": part(AUTO, "doubtful"),
    }


def _drop(row: Mapping[str, Any]) -> float:
    return 100.0 * float(row["harmed"] - row["helped"]) / float(row["texts"])


def _drop_error(row: Mapping[str, Any]) -> float:
    """Return the standard error of a task's drop, in points."""
    texts = float(row["texts"])
    variance = float(row["harmed"] + row["helped"]) / texts - (_drop(row) / 100.0) ** 2
    return 100.0 * math.sqrt(max(0.0, variance) / texts)


def table(
    tasks: Sequence[LadderedTask], first: Sequence[Mapping[str, Any]], rounds: Sequence[Round]
) -> list[dict[str, Any]]:
    """One row for each task: what was selected and promised, and what was measured."""
    of_task = {row["task"]: row for row in first}
    return [
        {"task": task.name, "select s": task.select_s}
        | ({"no ladder": task.reason} if not task.found else _laddered_row(task, of_task[task.name], rounds))
        for task in sorted(tasks, key=lambda task: not task.found)
    ]


def _laddered_row(task: LadderedTask, row: Mapping[str, Any], rounds: Sequence[Round]) -> dict[str, Any]:
    found, texts = task.found, row["texts"]
    alone, loaded = [each.alone_ms for each in rounds], [each.loaded_ms for each in rounds]
    times = {
        f"{name} ms, {level}": median(mean(by_level[level][task.name]) for by_level in of_rounds)
        for name, of_rounds in (("alone", alone), ("loaded", loaded))
        for level in LEVELS
    }
    return {
        "after": found["after"],
        "layers": found["layers"],
        "threshold": found["threshold"],
        "certified on": found["certified_on"],
        "answered early, promised": found["answered_early"],
        "answered early": row["early"] / texts,
        "kept tokens": found.get("kept_tokens"),
        "drop promised": 100 * found["bound"],
        "drop": _drop(row),
        "drop error": _drop_error(row),
        "full": 100 * row["full right"] / texts,
        "ladder": 100 * row["full right"] / texts - _drop(row),
        "texts": texts,
        **times,
    }


def _all(by_task: ByTask) -> list[float]:
    return [each for of_task in by_task.values() for each in of_task]
