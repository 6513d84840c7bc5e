"""Rows or segments of similar lengths in groups, so that padding each to its longest row costs least."""

from __future__ import annotations

from collections.abc import Sequence


def length_groups(lengths: Sequence[int], group_cost: int) -> list[list[int]]:
    """Rows sorted by length, cut where padded tokens plus `group_cost` tokens per group are fewest.

    Dynamic programming over the sorted rows: the best cut of the first j rows ends with some group of rows i to j,
    which costs (j - i) times the length of row j.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    least = [0]
    begins = [0]
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        costs = [least[begin] + (end - begin) * longest + group_cost for begin in range(end)]
        begins.append(min(range(end), key=costs.__getitem__))
        least.append(costs[begins[-1]])
    groups: list[list[int]] = []
    end = len(order)
    while end:
        groups.append(order[begins[end] : end])
        end = begins[end]
    return groups[::-1]
