"""The corpora of the demo: one per domain for its table, one mixed for distilling the root."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from demo.harvest import Harvest, Kind, Snippet, harvest
from demo.prose import Novelty, VerbatimFilter, is_english, passages
from demo.tasks import DemoTask

__all__ = ["SHARED_TEXTS", "Harvest", "corpora", "general_corpus", "harvest"]

DOMAIN_PACKAGES = {"stdlib": ("stdlib",), "numerics": ("numpy", "torch"), "databases": ("sqlalchemy",)}
PASSAGE_WORDS = 100
SHORTEST_WORDS = 4
DOMAIN_BYTES = 3_000_000
GENERAL_BYTES = 8_000_000

# New sentences, in no corpus, on which several tenants have something to say.
SHARED_TEXTS = (
    "Return True if the message has been stored in the folder and may be opened for reading.",
    "Write all pending records to the handlers and close the file that they share.",
    "Return the weighted mean of the values, ignoring those that are masked.",
    "Wait until every worker process has taken its job from the queue.",
    "Load the column types of a PostgreSQL table through the open connection.",
    "Expected a list of numbers but got a string.",
)


def corpora(harvest: Harvest, tasks: Sequence[DemoTask]) -> dict[str, list[str]]:
    """One text per line for each domain: its tasks' training texts and its packages' prose, and no test text."""
    held_out = HeldOut(tasks)
    return {
        domain: [
            *training_texts(domain, tasks, held_out),
            *sample(lines_of(harvest.of(*packages)), DOMAIN_BYTES, domain, held_out),
        ]
        for domain, packages in DOMAIN_PACKAGES.items()
    }


def training_texts(domain: str, tasks: Sequence[DemoTask], held_out: HeldOut) -> list[str]:
    texts = {example.text for task in tasks if task.domain == domain for example in task.train}
    return sorted(text for text in texts if not held_out.verbatim.matches(text))  # one task's test, another's training


def general_corpus(harvest: Harvest, tasks: Sequence[DemoTask]) -> list[str]:
    """Varied prose of all packages in random order, so that any beginning of it is a fair sample."""
    return sample(lines_of(harvest.snippets), GENERAL_BYTES, "general", HeldOut(tasks))


class HeldOut:
    """Knows the test texts of the demo, which must be met for the first time by the finished models."""

    def __init__(self, tasks: Sequence[DemoTask]) -> None:
        texts = [example.text for task in tasks for example in task.test]
        self.verbatim = VerbatimFilter(texts)
        self.novelty = Novelty(texts)

    def covers(self, line: str) -> bool:
        return not self.novelty.is_new(line) or self.verbatim.matches(line)


def lines_of(snippets: Iterable[Snippet]) -> list[str]:
    """Distinct passages of English; a message or comment is one line at most as long as a passage."""
    lines = {
        line
        for snippet in snippets
        for line in passages(snippet.text, PASSAGE_WORDS)
        if len(line.split()) >= shortest_words(snippet.kind) and is_english(line)
    }
    return sorted(lines)


def shortest_words(kind: Kind) -> int:
    """Short comments are mostly code that somebody switched off."""
    return 2 * SHORTEST_WORDS if kind is Kind.COMMENT else SHORTEST_WORDS


def sample(lines: list[str], most_bytes: int, seed: str, held_out: HeldOut) -> list[str]:
    """Draw lines at random, without held-out ones, until `most_bytes` are full."""
    random.Random(seed).shuffle(lines)
    chosen, size_bytes = [], 0
    for line in lines:
        if held_out.covers(line):
            continue
        size_bytes += len(line.encode()) + 1
        if size_bytes > most_bytes:
            break
        chosen.append(line)
    return chosen
