"""Entities in a text: a BIO tag for each word.

The words are those that the tokenizer finds in plain text, as they will be when it is served. A training token may
be several of them ("3-beta") or, where it has invisible characters only, none. The first word of an entity takes its
B-tag, and the others go on with it; the entity ends where its last word does, since no answer could end elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backends.engine.entities import Span, find_entities, words_span
from backends.root.words import RowWords
from builder.construct.tasks import metrics
from builder.construct.tasks.conll import OUTSIDE
from builder.construct.tasks.examples import TaggedSentence, is_visible
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.objective import Objective, balanced_weights, cross_entropy, distribution_distance

_UNKNOWN = -100
"""A target that a cross-entropy leaves out."""


@dataclass(frozen=True)
class TaggedRow:
    """A sentence as it was cut: what lies behind the root's limit has entities, but no words.

    Shape:
        first_tokens, tags: `[W]`.
    """

    text: str
    words: RowWords
    first_tokens: Tensor
    tags: Tensor
    entities: frozenset[Span]


class Ner(Objective[TaggedRow]):
    """A target is a row's words with their tags, and all entities of its sentence."""

    main_metric = "f1"
    about_words = True

    def __init__(self, labels: Sequence[str], train: Sequence[TaggedSentence], balanced: bool = False) -> None:
        self._labels = tuple(labels)
        self._index_of = {label: index for index, label in enumerate(labels)}
        self.num_outputs = len(labels)
        self.outside = self._index_of.get(OUTSIDE)
        tags = [self._index_of[tag] for sentence in train for tag in sentence.tags] if balanced else []
        self._weights = balanced_weights(torch.tensor(tags), self.num_outputs) if balanced else None

    def targets(self, examples: Sequence[TaggedSentence], words: Sequence[RowWords | None]) -> list[TaggedRow]:
        pairs = zip(examples, words, strict=True)
        return [self._target(sentence, of_row) for sentence, of_row in pairs if of_row is not None]

    def rows(self, outputs: Tensor, targets: Sequence[TaggedRow]) -> list[Tensor]:
        return [row[target.first_tokens.to(row.device)] for row, target in zip(outputs, targets, strict=True)]

    def hard_loss(self, answers: Tensor, targets: Sequence[TaggedRow], label_smoothing: float) -> Tensor:
        wanted = torch.cat([target.tags for target in targets]).to(answers.device)
        return cross_entropy(answers, wanted, self._weights, label_smoothing)

    def soft_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return distribution_distance(answers, teacher, temperature)

    def terms(self, outputs: Sequence[Tensor], targets: Sequence[TaggedRow]) -> Floats:
        pairs = zip(outputs, targets, strict=True)
        counts = [metrics.entity_counts(self._predicted(row, target), target.entities) for row, target in pairs]
        return np.array(counts, np.float64).reshape(-1, 3)

    def score(self, sums: Floats) -> Floats:
        return metrics.f1_of_sums(sums)

    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[TaggedRow]) -> dict[str, float]:
        predicted = [self._predicted(row, target) for row, target in zip(outputs, targets, strict=True)]
        return metrics.entity_scores(predicted, [target.entities for target in targets])

    def _target(self, sentence: TaggedSentence, words: RowWords) -> TaggedRow:
        tokens = _tokens(sentence, words)
        entities = sentence.entity_numbers()
        tags, before = [], None
        for token in tokens:
            tags.append(self._tag(sentence.tags[token], goes_on=entities[token] == before))
            before = entities[token]
        return TaggedRow(
            text=sentence.text,
            words=words,
            first_tokens=torch.from_numpy(words.first_tokens.astype(np.int64)),
            tags=torch.tensor(tags, dtype=torch.int64),
            entities=_findable(sentence, words, tokens),
        )

    def _tag(self, tag: str, goes_on: bool) -> int:
        """A test file may name kinds that were not trained, and imported labels may lack even O."""
        tag = OUTSIDE if tag == OUTSIDE else f"{'I' if goes_on else 'B'}-{tag[2:]}"
        return self._index_of.get(tag, self._index_of.get(OUTSIDE, _UNKNOWN))

    def _predicted(self, logits: Tensor, target: TaggedRow) -> frozenset[Span]:
        return frozenset(each.span for each in find_entities(logits, target.words, target.text, self._labels))


def _tokens(sentence: TaggedSentence, words: RowWords) -> list[int]:
    """The training token that each word lies in: the last one that begins at or before the word's last letter."""
    starts = np.array([start for start, _ in sentence.word_spans()])
    tokens: list[int] = (np.searchsorted(starts, words.ends - 1, side="right") - 1).tolist()
    return tokens


def _findable(sentence: TaggedSentence, words: RowWords, tokens: Sequence[int]) -> frozenset[Span]:
    """The entities as their words mark them; what lies behind the root's limit is as long as its tokens."""
    of_tokens: dict[int, list[int]] = {}
    for word, token in enumerate(tokens):
        of_tokens.setdefault(token, []).append(word)
    last = max(tokens, default=-1)
    groups: dict[int, list[Span]] = {}
    spans = sentence.word_spans()
    for token, (number, tag) in enumerate(zip(sentence.entity_numbers(), sentence.tags, strict=True)):
        if number is None:
            continue
        if inside := of_tokens.get(token):
            span = words_span(sentence.text, words, inside, tag[2:])
        elif token > last and is_visible(sentence.words[token]):
            span = Span(*spans[token], tag[2:])
        else:
            continue
        groups.setdefault(number, []).append(span)
    return frozenset(Span(group[0].start, group[-1].end, group[0].label) for group in groups.values())
