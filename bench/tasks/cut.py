"""A task cut to what a run can afford, written as the files that `hplm create` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.tasks.data import SPLITS, Caps, load_task, write_texts
from builder.construct.tasks.conll import OUTSIDE
from builder.construct.tasks.dataset import NER, REGRESSION, TaskData, TaskFiles, read_task
from builder.construct.tasks.examples import Example, TaggedSentence


@dataclass(frozen=True)
class CutTask:
    """Files of one task, and its kind, which the files of a regression do not tell."""

    kind: str
    files: TaskFiles

    def read(self) -> TaskData:
        return read_task(self.files, self.kind)


def cut_task(data: Path, name: str, caps: Caps, folder: Path) -> CutTask:
    """Write the examples within the caps; dev examples whose labels were all cut from train are left out."""
    task = load_task(data, name, caps)
    known = {label for example in task.train for label in _labels(example)}
    dev = task.dev if task.task == REGRESSION else [one for one in task.dev if _labels(one) <= known]
    target = folder / f"{name}-{caps.train}-{caps.dev}-{caps.test}-{caps.seed}"
    splits: dict[str, Sequence[Example]] = dict(zip(SPLITS, (task.train, dev, task.test), strict=True))
    paths = [target / f"{split}.{'conll' if task.task == NER else 'jsonl'}" for split in splits]
    for path, examples in zip(paths, splits.values(), strict=True):
        write_texts(path, list(_lines(examples)))
    return CutTask(task.task, TaskFiles(*paths))


def _labels(example: Example) -> set[str]:
    if isinstance(example, TaggedSentence):
        return {tag[2:] for tag in example.tags if tag != OUTSIDE}
    return {str(example.label)}


def _lines(examples: Iterable[Example]) -> Iterable[str]:
    for example in examples:
        if isinstance(example, TaggedSentence):
            yield from (f"{word}\t{tag}" for word, tag in zip(example.words, example.tags, strict=True))
            yield ""
        else:
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            yield json.dumps({"text": example.text, **pair, "label": example.label}, ensure_ascii=False)
