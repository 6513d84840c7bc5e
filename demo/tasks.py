"""Cuts a harvest into the classification tasks of the demo's tenants."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backends.storage import write_file
from demo.harvest import Harvest, Snippet
from demo.prose import Novelty, is_english
from demo.recipes import RECIPES, Recipe

logger = logging.getLogger(__name__)

SHORTEST_WORDS = 7
MOST_TEXTS_PER_LABEL = 450
# The largest label holds at most this many times the texts of the smallest one.
LARGEST_IMBALANCE = 3.0
FEWEST_TEXTS = 700


@dataclass(frozen=True)
class Example:
    text: str
    label: str


@dataclass(frozen=True)
class DemoTask:
    """One tenant's task; no text, nor a near-duplicate of it, is in two of the splits."""

    id: str
    domain: str
    question: str
    train: list[Example] = field(repr=False)
    dev: list[Example] = field(repr=False)
    test: list[Example] = field(repr=False)

    @property
    def splits(self) -> dict[str, list[Example]]:
        return {"train": self.train, "dev": self.dev, "test": self.test}


def demo_tasks(harvest: Harvest, recipes: Sequence[Recipe] = RECIPES) -> list[DemoTask]:
    """The tasks for which the harvest has enough texts, in the order of the recipes."""
    tasks = []
    for recipe in recipes:
        texts_of = texts_by_label(recipe, harvest.of(*recipe.packages))
        n_texts = sum(map(len, texts_of.values()))
        if n_texts < FEWEST_TEXTS or len(texts_of) < 2:
            logger.warning("leaving out %s: only %d texts under %d labels", recipe.id, n_texts, len(texts_of))
            continue
        tasks.append(split(recipe, texts_of))
    return tasks


def texts_by_label(recipe: Recipe, snippets: Iterable[Snippet]) -> dict[str, list[str]]:
    """Distinct texts of each label, as many as keep the labels balanced."""
    candidates = sorted(set(labelled_texts(recipe, snippets)))
    random.Random(recipe.id).shuffle(candidates)
    novelty = Novelty()
    texts_of: dict[str, list[str]] = {}
    for text, label in candidates:
        if novelty.accept(text):
            texts_of.setdefault(label, []).append(text)
    smallest = min(map(len, texts_of.values()), default=0)
    most = min(MOST_TEXTS_PER_LABEL, int(LARGEST_IMBALANCE * smallest))
    return {label: texts[:most] for label, texts in texts_of.items()}


def labelled_texts(recipe: Recipe, snippets: Iterable[Snippet]) -> Iterable[tuple[str, str]]:
    for snippet in snippets:
        label = recipe.label(snippet)
        for text in recipe.cut(snippet) if label else ():
            is_usable = len(text.split()) >= SHORTEST_WORDS and is_english(text)
            if label and is_usable and (recipe.must_name is None or recipe.must_name.search(text)):
                yield text, label


def split(recipe: Recipe, texts_of: Mapping[str, Sequence[str]]) -> DemoTask:
    examples = [Example(text, label) for label in sorted(texts_of) for text in texts_of[label]]
    random.Random(recipe.id).shuffle(examples)
    n_test = max(200, min(300, len(examples) // 4))
    n_dev = max(100, min(200, len(examples) // 8))
    return DemoTask(
        recipe.id,
        recipe.domain,
        recipe.question,
        train=examples[n_test + n_dev :],
        dev=examples[n_test : n_test + n_dev],
        test=examples[:n_test],
    )


def write_task(task: DemoTask, folder: Path) -> dict[str, Path]:
    """Writes `train.jsonl`, `dev.jsonl` and `test.jsonl` under `folder`/tenant/name."""
    folder = folder / task.id
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jsonl" for name in task.splits}
    for name, path in paths.items():
        write_lines(path, (json.dumps({"text": e.text, "label": e.label}) for e in task.splits[name]))
    return paths


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write all of them or none: what is there is taken for whole."""
    write_file(path, "".join(f"{line}\n" for line in lines).encode())
