"""What a tuning works on: the examples of a task after the lower half of a domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.root.tokenizer import Text
from builder.construct.hplm.states import StateCache
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import Objective
from builder.progress import Report


def encoded(
    home: Home, domain: DomainEntry, objective: Objective[Any], examples: Sequence[Example], what: str, report: Report
) -> EncodedSet:
    """The examples' hidden rows, out of the cache where they were made before, and what the task wants of each."""
    texts = [task_text(example) for example in examples]
    rows = StateCache(home, domain).rows(texts, objective.about_words, what, report)
    return EncodedSet(rows, objective.targets(examples, rows.words), rows.lengths, rows.middles)


def task_text(example: Example) -> Text:
    return example.text if example.text_pair is None else (example.text, example.text_pair)
