"""The texts that early heads learn from: such as the hPLM was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backends.root.store import RootFolder
from builder.construct.hplm.rewriting import Rewriting
from builder.construct.tasks.calibration import NO_LABEL, labels_of
from builder.construct.tasks.examples import Example
from builder.construct.tasks.trained_texts import TrainedTexts

if TYPE_CHECKING:
    from builder.construct.tasks.calibration import Bools

_REWRITING = Rewriting(variants=1, seed=31)
"""None of those that a teacher, or the hPLM itself, has answered for the tuning."""


@dataclass(frozen=True)
class LearnedTexts:
    """Texts to learn from.

    An hPLM answers texts that it was trained on better, and its layers agree on them more, than on any others; what a
    head learns from these does not hold for others. So they are rewritten, and their labels say nothing any more.

    Attributes:
        is_rewritten: Of each text, `[N]`.
    """

    examples: Sequence[Example]
    is_rewritten: Bools

    @classmethod
    def of(cls, examples: Sequence[Example], trained_on: TrainedTexts, root: RootFolder) -> LearnedTexts:
        """Take texts as they are where the hPLM was not trained on them."""
        known = trained_on.are_among(examples)
        if not known.any():
            return cls(examples, known)
        rewritten = _REWRITING.apply(examples, root.tokenizer(), root.lower().word_embeddings.weight)
        chosen = [new if is_known else old for new, old, is_known in zip(rewritten, examples, known, strict=True)]
        return cls(chosen, known)

    def labels(self, targets: Sequence[Any], num_outputs: int) -> Tensor:
        """Return what is known of all answers, one text after the other, by the targets of their objective."""
        each = [labels_of(target, num_outputs) for target in targets]
        pairs = zip(each, self.is_rewritten.tolist(), strict=True)
        return torch.cat([torch.full_like(one, NO_LABEL) if unknown else one for one, unknown in pairs])
