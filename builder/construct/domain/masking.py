"""Masking for a masked language model: it guesses 15 % of the tokens, of which 80 % are masked and 10 % replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.errors import InvalidArgumentError
from backends.plot.keys import FragmentShape
from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, TokenRows
from builder.construct.training.rows import PaddedRows, padded_rows

_MASK_NAMES = ("[MASK]", "<mask>")
_CHOSEN_SHARE = 0.15
_MASKED_SHARE = 0.8
_REPLACED_SHARE = 0.1


@dataclass(frozen=True)
class MaskedRows:
    """Rows with some tokens hidden, also from the fragments of their neighbours.

    Shape:
        chosen: `[T]` bool; targets: `[M]` with M = chosen.sum(), the tokens that were there.
    """

    rows: PaddedRows
    chosen: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> MaskedRows:
        return MaskedRows(self.rows.to(device), self.chosen.to(device), self.targets.to(device))


class Masking:
    """The rule for one root; a seed gives the same choice again."""

    def __init__(self, tokenizer: RootTokenizer, geometry: RootGeometry) -> None:
        special = tokenizer.special_ids
        masks = [special[name] for name in _MASK_NAMES if name in special]
        if not masks:
            raise InvalidArgumentError(
                "the root's tokenizer has no mask token, so its lower layers cannot be pretrained further; "
                "build the domain with --no-pretrain"
            )
        self._mask_id = masks[0]
        self._special = np.array(sorted(special.values()), np.int64)
        self._words = np.setdiff1d(np.arange(1, geometry.vocab_size), self._special)
        self._shape = FragmentShape.centred(geometry.n)

    def apply(self, rows: TokenRows, seed: int) -> MaskedRows:
        rng = np.random.default_rng(seed)
        chosen = (rng.random(len(rows.token_ids)) < _CHOSEN_SHARE) & ~np.isin(rows.token_ids, self._special)
        hidden = replace(rows, token_ids=self._hidden(rows.token_ids, chosen, rng))
        targets = torch.from_numpy(rows.token_ids[chosen])
        return MaskedRows(self.unmasked(hidden), torch.from_numpy(chosen), targets)

    def unmasked(self, rows: TokenRows) -> PaddedRows:
        return padded_rows(rows, self._shape)

    def _hidden(
        self, token_ids: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        fate = np.where(chosen, rng.random(len(token_ids)), 1.0)
        replaced = np.where(fate < _MASKED_SHARE + _REPLACED_SHARE, rng.choice(self._words, len(token_ids)), token_ids)
        return np.where(fate < _MASKED_SHARE, self._mask_id, replaced)
