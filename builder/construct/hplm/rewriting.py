"""More texts for a teacher to answer: a task's own, with words replaced by near ones.

Near are words whose embeddings in the pretrained model point the same way, among those that the task's texts are made
of. A word that both segments of a pair have becomes the same in both. Such a text may be nonsense; the teacher's answer
to it can be learnt all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from backends.errors import InvalidArgumentError
from backends.root.tokenizer import RootTokenizer
from builder.construct.tasks.examples import Example, LabelledText
from builder.settings.seeds import require_seed

_WORD = re.compile(r"[^\W\d_]{3,}")
_MOST_WORDS = 20_000
_NEAR = 15
_WORDS_AT_ONCE = 1024


@dataclass(frozen=True)
class Rewriting:
    """The number of rewritten texts for each example, and the share of their words that is replaced."""

    variants: int = 5
    share: float = 0.3
    seed: int = 29

    def __post_init__(self) -> None:
        if self.variants < 0:
            raise InvalidArgumentError(f"there cannot be {self.variants} variants of an example")
        if not 0 < self.share <= 1:
            raise InvalidArgumentError(f"the share of replaced words must be above 0 and at most 1, not {self.share}")
        require_seed(self.seed)

    def apply(self, examples: Sequence[Example], tokenizer: RootTokenizer, embeddings: Tensor) -> list[Example]:
        """All examples rewritten, then all once more, and so on; with the same seed the same again.

        Shape: embeddings `[vocabulary, H]`
        """
        if not self.variants:
            return []
        near = NearWords.among(examples, tokenizer, embeddings)
        rng = np.random.default_rng(self.seed)
        return [self._rewritten(example, near, rng) for _ in range(self.variants) for example in examples]

    def _rewritten(self, example: Example, near: NearWords, rng: np.random.Generator) -> Example:
        def choose(word: str) -> str:
            return self._chosen(word, near, rng)

        def rewrite(text: str, choose: Callable[[str], str]) -> str:
            return _WORD.sub(lambda match: choose(match.group()), text)

        if not isinstance(example, LabelledText):
            return replace(example, words=tuple(rewrite(word, choose) for word in example.words))
        if example.text_pair is None:
            return replace(example, text=rewrite(example.text, choose))
        of_both = cache(choose)  # or hardly a pair would still be one
        return replace(example, text=rewrite(example.text, of_both), text_pair=rewrite(example.text_pair, of_both))

    def _chosen(self, word: str, near: NearWords, rng: np.random.Generator) -> str:
        others = near.of(word)
        return others[rng.integers(len(others))] if others and rng.random() < self.share else word


FOR_OWN_ANSWERS = Rewriting(variants=2)
"""Where an hPLM itself answers the texts, for its lower layers or for students to learn from."""


class NearWords:
    """Replacements for the words of some texts, taken from the same texts.

    Shape: near: `[words, k]`, indices of `words`.
    """

    def __init__(self, words: Sequence[str], near: npt.NDArray[np.int64]) -> None:
        self._words = words
        self._index_of = {word: index for index, word in enumerate(words)}
        self._near = near

    @classmethod
    def among(cls, examples: Sequence[Example], tokenizer: RootTokenizer, embeddings: Tensor) -> NearWords:
        """The most frequent words of the examples; spellings that the model cannot tell apart count as one."""
        counts = Counter(word for text in _texts(examples) for word in _WORD.findall(text))
        words, pieces = _distinct([word for word, _ in counts.most_common(_MOST_WORDS)], tokenizer)
        if not words:
            return cls([], np.zeros((0, 0), np.int64))
        directions = functional.normalize(torch.stack([embeddings[ids].float().mean(dim=0) for ids in pieces]), dim=1)
        count = min(_NEAR, len(words) - 1)
        # The nearest of all is the word itself, which is left out by its index, not by its rank.
        near = []
        for start in range(0, len(words), _WORDS_AT_ONCE):
            likeness = directions[start : start + _WORDS_AT_ONCE] @ directions.T
            likeness.diagonal(start).fill_(-torch.inf)
            near.append(likeness.topk(count, dim=1).indices)
        return cls(words, torch.cat(near).numpy())

    def of(self, word: str) -> list[str]:
        index = self._index_of.get(word)
        return [] if index is None else [self._words[other] for other in self._near[index]]


def _texts(examples: Sequence[Example]) -> Iterator[str]:
    for example in examples:
        yield example.text
        if example.text_pair is not None:
            yield example.text_pair


def _distinct(words: Sequence[str], tokenizer: RootTokenizer) -> tuple[list[str], list[Tensor]]:
    """Each word that the model has pieces of its own for, and these."""
    special = list(tokenizer.special_ids.values())
    known: dict[bytes, str] = {}
    pieces: list[Tensor] = []
    if not words:
        return [], pieces
    rows = tokenizer.encode(words)
    for word, ids in zip(words, np.split(rows.token_ids, rows.row_offsets[1:-1]), strict=True):
        own = ids[~np.isin(ids, special)]
        if len(own) and known.setdefault(own.tobytes(), word) == word:
            pieces.append(torch.from_numpy(own))
    return list(known.values()), pieces
