"""The domains of `bench.theta`: a corpus and a task of its field, from a data folder or from the demo's own texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from backends.errors import NotFoundError
from demo.harvest import harvest
from demo.tasks import demo_tasks, write_lines, write_task
from demo.texts import corpora, general_corpus

_OF_DATA = {"biology": "chemprot", "computing": "sciie-relations"}
_DOMAINS = 2


@dataclass(frozen=True)
class Case:
    """One domain and the task that is tuned on it."""

    domain: str
    task: str
    corpus: Path
    train: Path
    dev: Path
    test: Path

    def shortened(self, folder: Path, corpus_texts: int, task_texts: int) -> Case:
        """The first texts of each file only; of dev and test file those whose labels training has."""
        folder.mkdir(parents=True, exist_ok=True)
        train = _lines(self.train)[:task_texts]
        labels = {json.loads(line)["label"] for line in train}
        kept = {"corpus": _lines(self.corpus)[:corpus_texts], "train": train}
        for split, path in (("dev", self.dev), ("test", self.test)):
            kept[split] = [line for line in _lines(path) if json.loads(line)["label"] in labels][:task_texts]
        files = {name: folder / f"{self.domain}-{name}.jsonl" for name in kept}
        for name, path in files.items():
            path.write_text("\n".join(kept[name]) + "\n", encoding="utf-8")
        return Case(self.domain, self.task, **files)


@dataclass(frozen=True)
class CaseData:
    """The cases, and the texts for the general table of a root that is made for them."""

    general: Path
    cases: Sequence[Case]


def cases_of_data(data: Path) -> CaseData:
    """Corpora in `corpora/`, tasks in `tasks/<name>/`."""
    cases = [
        Case(
            domain,
            task,
            corpus=data / f"corpora/{domain}.txt",
            **{split: data / f"tasks/{task}/{split}.jsonl" for split in ("train", "dev", "test")},
        )
        for domain, task in _OF_DATA.items()
    ]
    for case in cases:
        for path in (case.corpus, case.train, case.dev, case.test):
            if not path.is_file():
                raise NotFoundError(f"{path} does not exist; --data names a folder with corpora/ and tasks/")
    return CaseData(data / "corpora/general.txt", cases)


def cases_of_demo(folder: Path) -> CaseData:
    """The first task of each of the demo's first domains, written into the folder."""
    found = harvest()
    tasks = demo_tasks(found)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "general.txt", general_corpus(found, tasks))
    cases = []
    for domain, texts in islice(corpora(found, tasks).items(), _DOMAINS):
        task = next(task for task in tasks if task.domain == domain)
        write_lines(folder / f"{domain}.txt", texts)
        cases.append(Case(domain, task.id, folder / f"{domain}.txt", **write_task(task, folder)))
    return CaseData(folder / "general.txt", cases)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]
