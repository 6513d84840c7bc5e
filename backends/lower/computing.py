"""The fragments that a call's texts lack, computed together for all domains that share their lower layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.lower.filling import DomainFilling
from backends.lower.model import PendingTexts
from backends.plot.arrays import Found, Keys, Rows
from backends.plot.askers import SEVERAL, Askers, asked_by
from backends.trace import Lane, span

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lacking:
    """Texts of one domain; some of their fragments are in no table and in no overlay."""

    texts: PendingTexts
    filling: DomainFilling
    askers: Askers
    """Of each text, its tenant's number."""

    @property
    def keys(self) -> Keys:
        """Shape: [M]."""
        return self.texts.lookup.keys[self.texts.lookup.missing]

    @property
    def missing_askers(self) -> Askers:
        """Shape: [M]."""
        return self.askers[self.texts.missing_rows]

    def note_askers(self) -> None:
        """Note who else asks for the fragments that the overlay holds for one tenant."""
        if not self.filling.overlay.is_private:
            tokens, known = self.texts.lookup.supplied()
            askers = self.askers[self.texts.tokens.rows_of(tokens)]
            is_shared = (known != SEVERAL) & (known != askers)
            self.filling.note(self.texts.lookup.keys[tokens[is_shared]], askers[is_shared])


@dataclass(frozen=True)
class _Missing:
    """The missing fragments of all parts that one encoder computes.

    Attributes:
        ids: The place of each missing token's fragment among `keys`, part by part.
    """

    parts: Sequence[Lacking]
    keys: Keys
    ids: Sequence[Ids]


def compute_missing(call: Sequence[Lacking], limit: int) -> None:
    """Compute up to `limit` distinct fragments for a call's texts, and keep them for later texts.

    Where that is not enough, texts that lack few fragments come first, so that as many texts as possible are exact;
    what the others lack is learned in the background.
    """
    by_encoder: dict[str, list[Lacking]] = {}
    for part in call:
        if part.texts.lookup.missing.size:
            by_encoder.setdefault(part.filling.encoder, []).append(part)
    missing = [_missing(parts) for parts in by_encoder.values()]
    total = sum(each.keys.size for each in missing)
    if not total:
        return
    with span(Lane.RETRIEVAL, "compute", fragments=total):
        chosen = _chosen(missing, limit) if total > limit else [np.ones(each.keys.size, np.bool_) for each in missing]
        for each, is_chosen in zip(missing, chosen, strict=True):
            _compute(each, is_chosen)


def _missing(parts: Sequence[Lacking]) -> _Missing:
    keys = [part.keys for part in parts]
    distinct, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    return _Missing(parts, distinct, np.split(inverse, np.cumsum([each.size for each in keys])[:-1]))


def _chosen(missing: Sequence[_Missing], limit: int) -> list[Found]:
    """Choose `limit` fragments of all encoders' together: text by text, those that lack the fewest first."""
    starts = np.cumsum([0, *(each.keys.size for each in missing)])
    ids = np.concatenate([start + part for start, each in zip(starts, missing, strict=False) for part in each.ids])
    lacked = np.concatenate([_lacked_by_text(part) for each in missing for part in each.parts])
    in_order = ids[np.argsort(lacked, kind="stable")]
    first = np.sort(np.unique(in_order, return_index=True)[1])[:limit]
    chosen = np.zeros(starts[-1], np.bool_)
    chosen[in_order[first]] = True
    return np.split(chosen, starts[1:-1])


def _lacked_by_text(part: Lacking) -> Ids:
    """How many fragments the text of each missing token lacks.

    Shape: [M]
    """
    rows = part.texts.missing_rows
    lacked: Ids = np.bincount(rows)[rows]
    return lacked


def _compute(missing: _Missing, is_chosen: Found) -> None:
    """Compute the chosen fragments, give each part its own, and leave the others to be learned."""
    started_s = time.thread_time()
    vectors = missing.parts[0].filling.vectors(missing.keys[is_chosen]) if is_chosen.any() else None
    us_per_token = 1e6 * (time.thread_time() - started_s) / max(1, sum(is_chosen[ids].sum() for ids in missing.ids))
    places: Rows = np.cumsum(is_chosen) - 1
    for part, ids in zip(missing.parts, missing.ids, strict=True):
        keys, found, rows = part.keys, is_chosen[ids], places[ids]
        askers = part.missing_askers
        part.filling.want_beyond_limit(keys[~found], askers[~found])
        if vectors is not None:
            part.texts.charge(found, us_per_token)
            part.texts.lookup.supply(vectors, rows, found)
            first, by = asked_by(ids[found], askers[found])
            part.filling.keep_computed(keys[found][first], vectors[rows[found][first]], by)
