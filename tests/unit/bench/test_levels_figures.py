"""`bench.levels`: what is asked of whom, which answers are right, and what the figures are made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import read_ladder, write_ladder
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.random_root import random_ladder
from bench.levels import levels as bench_levels
from bench.tasks import levels_load
from bench.tasks.laddered import LadderedTask, add_tenants
from bench.tasks.levels_figures import FirstAnswers, Round, figures_of, table
from bench.tasks.levels_load import LevelsLoad, Question, Tenants, is_same
from builder.construct.hplm.hplms import publish_linked
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence
from hplm_client import Answer, Classification, ClientError, Entities, Entity, Request, ServerError, UnavailableError
from loadtest.errors import RunError
from loadtest.sender import Ask, Target

COUNTS = {"texts": 100, "harmed": 3, "helped": 1, "full right": 90, "early": 70, "inexact": 1}
SAME = {"alone": 10, "same level": 9, "same label": 10}


def label(name: str, level: str | None = None, exact: bool = True) -> Answer:
    answer = Classification("a/b", 1, "classification", False, exact, name, 1.0, {name: 1.0})
    object.__setattr__(answer, "level", level)  # as the client sets it
    return answer


def entities(*spans: tuple[int, int, str]) -> Entities:
    return Entities("a/b", 1, "ner", False, True, tuple(Entity(*span[:2], "text", span[2], 1.0) for span in spans))


def round_of(alone: Sequence[float], loaded: float, rate: float) -> Round:
    return Round(
        {"full": {"one": [10.0, 10.0]}, "auto": {"one": list(alone)}},
        {"full": {"one": [20.0]}, "auto": {"one": [loaded]}},
        {"full": 100.0, "auto": rate},
        {
            "full": {"requests": 200, "answered": 100, "right": 90, "doubtful": 0},
            "auto": {"requests": 200, "answered": 160, "right": 126, "doubtful": 80},
        },
    )


def test_right_is_the_label_or_all_entities_and_no_others() -> None:
    question = Question("tenant0/one", LabelledText("text", "a"))
    assert question.is_right(label("a")) and not question.is_right(label("b"))
    sentence = Question("tenant0/two", TaggedSentence(("new", "York"), ("O", "B-place")))
    assert sentence.is_right(entities((4, 8, "place")))
    assert not sentence.is_right(entities((0, 8, "place")))
    assert not sentence.is_right(entities((4, 8, "place"), (0, 3, "place")))
    assert is_same(entities((4, 8, "place")), entities((4, 8, "place"))) and not is_same(entities(), label("a"))


def test_every_text_is_asked_once_and_drawn_ones_are_of_the_tenants_task() -> None:
    tests: dict[str, list[Example]] = {
        "one": [LabelledText(f"text {number}", "a") for number in range(5)],
        "pairs": [LabelledText("first", "a", "second")],
    }
    tenants = Tenants(["tenant0/one", "tenant1/pairs", "tenant2/one"], tests)
    every = tenants.every_text(np.random.default_rng(1))
    assert sorted(each.text for each in every) == ["first\tsecond", *(f"text {number}" for number in range(5))]
    assert sorted(each.hplm for each in every if each.task == "one") == ["tenant0/one"] * 3 + ["tenant2/one"] * 2
    drawn = tenants.drawn(50, np.random.default_rng(1))
    assert {each.hplm for each in drawn} == {"tenant0/one", "tenant1/pairs", "tenant2/one"}
    assert all(each.example in tests[each.task] for each in drawn)


def test_first_answers_are_counted_by_task() -> None:
    one, other = (Question("tenant0/one", LabelledText(text, "a")) for text in ("one", "other"))
    found = FirstAnswers(
        ladder={one: label("b", "early"), other: label("a", "full", exact=False)},
        full={one: label("a"), other: label("a")},
        ladder_alone={one: label("b", "full")},
        full_alone={one: label("a")},
        plain_alone={one: label("a")},
    )
    counts = {"texts": 2, "harmed": 1, "helped": 0, "full right": 2, "early": 1, "inexact": 1}
    assert found.rows() == [{"task": "one", **counts, "alone": 1, "same level": 0, "same label": 1}]


def test_of_an_overload_only_answers_in_time_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third request is rejected; a quarter of the answers is wrong, and every text is asked several times."""
    asked: list[Request] = []

    @asynccontextmanager
    async def open_fake(_: Target) -> AsyncIterator[Ask]:
        async def ask(request: Request) -> Answer:
            asked.append(request)
            if len(asked) % 3 == 0:
                raise failing("predicted to be late")
            answer = label("b" if request.text == "text 3" else "a", "early")
            object.__setattr__(answer, "doubtful", request.text == "text 0")
            return answer

        yield ask

    monkeypatch.setattr(levels_load, "open_sdk", open_fake)
    failing: type[ClientError] = UnavailableError
    questions = [Question("tenant0/one", LabelledText(f"text {number % 4}", "a")) for number in range(120)]
    times = np.linspace(0.0, 0.2, 120), np.full(120, 5_000)
    found = LevelsLoad("localhost:1").overloaded(questions, *times, "auto")
    assert (found.requests, found.answered) == (120, 80)
    assert (found.right, found.doubtful) == (60, 20)
    assert {request.deadline_ms for request in asked} <= {*range(1, 5_001)} and {each.level for each in asked} == {
        "auto"
    }
    failing = ServerError
    with pytest.raises(RunError, match=r"40 of 120 requests failed, the first by: .*predicted to be late"):
        LevelsLoad("localhost:1").overloaded(questions, *times, "auto")


def test_ratios_are_medians_over_rounds() -> None:
    rounds = [round_of([4.0, 8.0], 5.0, 150.0), round_of([9.0, 9.0], 9.0, 120.0), round_of([5.0, 5.0], 8.0, 140.0)]
    first: list[dict[str, Any]] = [{"task": "one", **COUNTS, **SAME}, {"task": "two", **COUNTS, **SAME, "harmed": 0}]
    found = figures_of(first, rounds, tasks=4)
    assert found["lone_latency_ratio"] == pytest.approx(0.6)
    assert found["latency_ratio_at_0_8"] == pytest.approx(0.4)
    assert found["rows_per_s_ratio"] == pytest.approx(1.4)
    assert found["p99_ratio_lone"] == pytest.approx(0.796)
    assert found["drop_points_mean"] == pytest.approx(0.5) and found["worst_drop_points"] == pytest.approx(2.0)
    assert (found["same_level_share"], found["full_same_label_share"]) == (0.9, 1.0)
    assert (found["answered_early_mean"], found["tasks_with_ladder_share"]) == (0.7, 0.5)
    assert (found["answered_2x_over_full"], found["right_2x_over_full"]) == (1.6, pytest.approx(1.4))
    assert (found["accuracy_2x"], found["accuracy_2x_full"]) == (0.7875, 0.9) and found["doubtful_2x"] == 0.5


def test_the_table_has_what_was_promised_beside_what_was_measured(tiny_home: Home) -> None:
    entry = Registry.open(tiny_home).hplm("acme/topic")
    ladder = {"after": 2, "layers": 6, "threshold": 0.9, "certified_on": 400, "answered_early": 0.6, "bound": 0.0083}
    tasks = [LadderedTask("hard", entry, {}, "no threshold keeps it", 3.0), LadderedTask("one", entry, ladder, None, 2)]
    with_ladder, without = table(tasks, [{"task": "one", **COUNTS, **SAME}], [round_of([4.0, 8.0], 5.0, 150.0)])
    assert with_ladder["task"] == "one" and with_ladder["drop promised"] == pytest.approx(0.83)
    assert (with_ladder["answered early"], with_ladder["drop"]) == (0.7, pytest.approx(2.0))
    assert (with_ladder["full"], with_ladder["ladder"]) == (90.0, pytest.approx(88.0))
    assert with_ladder["drop error"] == pytest.approx((4 - 0.04) ** 0.5)
    assert (with_ladder["alone ms, full"], with_ladder["alone ms, auto"]) == (10.0, 6.0)
    assert without == {"task": "hard", "select s": 3.0, "no ladder": "no threshold keeps it"}


def test_tenants_have_copies_with_or_without_the_ladder(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    live = registry.hplm("acme/topic")
    root = RootFolder(tiny_home.root(live.domain.root))
    ladder = random_ladder(root.geometry, 1, 0.9, torch.Generator().manual_seed(1))
    figures = {"levels": ["early", "full"], "ladder": dict(ladder.certified)}
    model = publish_linked(
        tiny_home, registry, live, lambda folder: write_ladder(folder, ladder, root.fingerprint), figures
    )
    added = add_tenants(tiny_home, [model, registry.hplm("acme/mood")], 3, has_ladders=True)
    assert added == ["tenant0/topic", "tenant1/mood", "tenant2/topic"]
    copy = registry.hplm("tenant2/topic")
    assert copy.levels == ("early", "full")
    assert read_artifact(tiny_home.path / copy.folder, root.fingerprint).hplm == "tenant2/topic"
    assert read_ladder(tiny_home.path / copy.folder, root.fingerprint) is not None
    add_tenants(tiny_home, [replace(model, id="plain/other")], 1, has_ladders=False)
    plain = registry.hplm("tenant0/other")
    assert plain.levels == ("full",)
    assert read_ladder(tiny_home.path / plain.folder, root.fingerprint) is None


def test_rounds_are_at_least_one() -> None:
    with pytest.raises(SystemExit, match=r"bench\.levels: --rounds is at least 1"):
        bench_levels.main(["--data", "nowhere", "--rounds", "0"])
