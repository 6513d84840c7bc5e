"""Whether an uploaded file can be used at all: said at once, while its sender is still there to hear it."""

from __future__ import annotations

import json
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.conll import is_conll, read_sentences
from builder.construct.tasks.jsonl import read_classes, read_values
from builder.construct.tasks.lines import numbered_lines
from builder.construct.training.corpus import corpus_texts
from builder.manager.archives import check_archive
from builder.requests.base import UploadKind

_MAX_TASK_BYTES = 256 << 20


def check_corpus(path: Path) -> str:
    num_texts = sum(1 for _ in corpus_texts([path]))
    if not num_texts:
        raise TrainingDataError(f"{path} holds no text")
    return f"{num_texts} texts"


def check_task(path: Path) -> str:
    """Any of the training formats; which one a job needs is known only with the job."""
    if path.stat().st_size > _MAX_TASK_BYTES:
        raise TrainingDataError(f"{path} is larger than {_MAX_TASK_BYTES >> 20} MiB, the most that a task file may be")
    if is_conll(path):
        return f"{len(read_sentences(path))} tagged sentences"
    read = read_values if _has_values(path) else read_classes
    return f"{len(read(path))} labelled texts"


def check_adapter(path: Path) -> str:
    return f"{len(check_archive(path))} files"


CHECKS = {UploadKind.CORPUS: check_corpus, UploadKind.TASK: check_task, UploadKind.ADAPTER: check_adapter}


def _has_values(path: Path) -> bool:
    """Whether the first line's label is a number; what is wrong with the line is said by whoever reads it whole."""
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return False
    label = content.get("label") if isinstance(content, dict) else None
    return isinstance(label, int | float) and not isinstance(label, bool)
