"""The lower layers while they learn: fragments → boundary states, with gradients; `LowerModel` looks the same up."""

from __future__ import annotations

from torch import Tensor

from backends.root.lower import Aggregation, FragmentEncoder, sum_overlapping
from builder.construct.training.rows import PaddedRows, distinct_fragments


def boundary_states(
    lower: FragmentEncoder, aggregation: Aggregation, rows: PaddedRows, fragments: Tensor | None = None
) -> Tensor:
    """What the upper layers get of the real tokens, fp32 but for autocast; other `fragments` stand in for the rows'.

    Shape: fragments `[T, n]` → `[T, H]`
    """
    fragments = rows.fragments if fragments is None else fragments
    distinct, inverse = distinct_fragments(fragments)
    summed = sum_overlapping(lower(distinct)[inverse].float(), fragments.shape[1] // 2)
    states: Tensor = aggregation(summed, rows.positions, rows.flat_types)
    return states
