"""The objective of a task, by its name."""

from __future__ import annotations

from typing import Any

from builder.construct.tasks.classification import Classification
from builder.construct.tasks.dataset import NER, REGRESSION, TaskData
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.regression import Regression


def objective_of(data: TaskData, balanced: bool = False) -> Objective[Any]:
    """`balanced` lets each class, or each tag, weigh the same; numbers have no classes."""
    if data.task == NER:
        return Ner(data.labels, [each for each in data.train if isinstance(each, TaggedSentence)], balanced)
    texts = [each for each in data.train if isinstance(each, LabelledText)]
    return Regression(texts) if data.task == REGRESSION else Classification(data.labels, texts, balanced)
