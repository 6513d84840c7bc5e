"""Cuts by dynamic programming against all cuts there are."""

from __future__ import annotations

import itertools
import random

import pytest

from backends.errors import InvalidArgumentError
from backends.scheduling.cuts import Cut, equal_latency_cuts, half_layers, stage_sums


def fits(halves_bytes: list[int], cut: Cut, memory: int | list[int] | None) -> bool:
    rooms = memory if isinstance(memory, list) else [memory] * len(cut)
    return all(room is None or size <= room for size, room in zip(stage_sums(halves_bytes, cut), rooms, strict=False))


def best_of_all(
    halves_us: list[int], halves_bytes: list[int], stages: int, memory: int | list[int] | None
) -> int | None:
    """The slowest stage of the best cut; None where none fits."""
    found = []
    for inner in itertools.combinations(range(1, len(halves_us)), stages - 1):
        cut: Cut = (*inner, len(halves_us))
        if fits(halves_bytes, cut, memory):
            found.append(max(stage_sums(halves_us, cut)))
    return min(found, default=None)


def test_no_cut_is_better(seed: int) -> None:
    chance = random.Random(seed)
    unfitting = 0
    for number in range(300):
        count = chance.randint(1, 9)
        halves_us = [chance.choice([0, 1, 5, chance.randint(1, 100)]) for _ in range(count - 1)] + [3]
        halves_bytes = [chance.randint(0, 20) for _ in range(count)]
        memory = chance.choice([None, chance.randint(5, 60), [chance.randint(5, 60) for _ in range(10)]])
        cuts = equal_latency_cuts(halves_us, halves_bytes, 10, memory)
        for stages in range(1, 11):
            expected = best_of_all(halves_us, halves_bytes, stages, memory) if stages <= count else None
            case = f"case {number} of seed {seed}, {stages} stages"
            assert (stages in cuts) == (expected is not None), case
            if expected is None:
                unfitting += stages <= count
                continue
            cut = cuts[stages]
            assert len(cut) == stages and cut[-1] == count and list(cut) == sorted(set(cut)), case
            assert max(stage_sums(halves_us, cut)) == expected, case
            assert fits(halves_bytes, cut, memory), case
    assert unfitting


def test_half_layers_make_stages_more_even() -> None:
    """Six layers in four stages: 1.33 of an even share where layers stay whole, 1.11 where they are cut."""
    layers = [900] * 6
    halves = half_layers(layers)
    assert halves == (300, 600) * 6
    whole, cut = equal_latency_cuts(layers, layers, 4)[4], equal_latency_cuts(halves, halves, 4)[4]
    even = sum(layers) / 4
    assert max(stage_sums(layers, whole)) / even == pytest.approx(4 / 3)
    assert max(stage_sums(halves, cut)) / even == pytest.approx(10 / 9)


@pytest.mark.parametrize(
    ("halves_us", "halves_bytes", "complaint"),
    [
        ([], [], "a time and a size"),
        ([1], [1, 2], "a time and a size"),
        ([1, -1], [1, 1], "less than 0"),
        ([1, 1], [1, -1], "less than 0"),
        ([0, 0], [1, 1], "hplm profile"),
    ],
)
def test_bad_profiles_are_rejected(halves_us: list[int], halves_bytes: list[int], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        equal_latency_cuts(halves_us, halves_bytes, 2)
