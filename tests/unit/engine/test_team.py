"""How many threads compute, by what batches took with each number."""

from __future__ import annotations

import random

import pytest

from backends.engine.team import Team


def play(team: Team, per_us: dict[int, float], batches: int, chance: random.Random, noise: float = 0.1) -> list[int]:
    """The sizes of batches that take so long, per predicted microsecond, with each number of threads."""
    sizes = []
    for _ in range(batches):
        size, predicted_us = team.size(), chance.uniform(1_000, 300_000)
        team.note(size, predicted_us * per_us[size] * chance.uniform(1 - noise, 1 + noise), predicted_us)
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("most", [2, 16])
def test_one_thread_less_computes_while_that_is_faster(most: int) -> None:
    chance, team = random.Random(3), Team(most, may_spare_one=True)
    for fastest, other in ((most, most - 1), (most - 1, most), (most, most - 1)):
        play(team, {fastest: 1.0, other: 1.3}, 80, chance)
        sizes = play(team, {fastest: 1.0, other: 1.3}, 120, chance)
        assert sizes.count(fastest) >= 110


def test_what_loses_clearly_is_tried_ever_more_seldom() -> None:
    chance, team = random.Random(7), Team(2, may_spare_one=True)
    sizes = play(team, {2: 1.0, 1: 1.9}, 12 + 24 + 48 + 96 + 192 + 384, chance)
    assert sizes.count(1) == 6
    assert play(team, {2: 1.0, 1: 1.9}, 10 * 384, chance).count(1) == 10


def test_a_server_under_another_load_tries_again_soon() -> None:
    """Whatever seldom was tried may be the faster one now."""
    chance, team = random.Random(8), Team(2, may_spare_one=True)
    play(team, {2: 1.0, 1: 1.9}, 3_000, chance)
    sizes = play(team, {2: 2.6, 1: 1.9}, 60, chance)
    assert sizes[-20:].count(1) >= 19


def test_nothing_is_tried_with_a_batch_that_cannot_bear_it() -> None:
    team = Team(2, may_spare_one=True)
    assert [team.size(may_try=False) for _ in range(100)] == [2] * 100
    assert team.size() == 1


def test_what_makes_hardly_a_difference_changes_nothing() -> None:
    sizes = play(Team(2, may_spare_one=True), {2: 1.0, 1: 0.97}, 600, random.Random(4), noise=0.01)
    assert sizes.count(2) == 550


@pytest.mark.parametrize("team", [Team(1, may_spare_one=True), Team(4, may_spare_one=False)])
def test_who_may_not_choose_keeps_the_number(team: Team) -> None:
    most = team.size()
    assert play(team, {most: 1.0}, 50, random.Random(5)) == [most] * 50


def test_batches_that_nothing_was_predicted_of_say_nothing() -> None:
    team = Team(2, may_spare_one=True)
    for _ in range(50):
        team.note(team.size(), 5.0, 0.0)
    assert team.size() == 2
