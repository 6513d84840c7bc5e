"""Checks of uploaded files, made while the sender waits for the answer."""

from __future__ import annotations

import json
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.conll import each_sentence, is_conll
from builder.construct.tasks.jsonl import each_class, each_value
from builder.construct.training.corpus import corpus_texts
from builder.construct.training.lines import numbered_lines
from builder.manager.archives import check_archive
from builder.requests.base import UploadKind

_MAX_TASK_BYTES = 256 << 20


def check_corpus(path: Path) -> str:
    num_texts = sum(1 for _ in corpus_texts([path]))
    if not num_texts:
        raise TrainingDataError(f"{path} holds no text")
    return f"{num_texts} texts"


def check_task(path: Path) -> str:
    """Check any of the training formats, keeping one example at a time; a job knows which format it needs."""
    if path.stat().st_size > _MAX_TASK_BYTES:
        raise TrainingDataError(f"{path} is larger than {_MAX_TASK_BYTES >> 20} MiB, the most that a task file may be")
    if is_conll(path):
        return f"{sum(1 for _ in each_sentence(path))} tagged sentences"
    examples = each_value(path) if _has_values(path) else each_class(path)
    return f"{sum(1 for _ in examples)} labelled texts"


def check_adapter(path: Path) -> str:
    return f"{len(check_archive(path))} files"


CHECKS = {UploadKind.CORPUS: check_corpus, UploadKind.TASK: check_task, UploadKind.ADAPTER: check_adapter}


def _has_values(path: Path) -> bool:
    """Look whether the first line's label is a number; reading the whole file reports what is wrong with the line."""
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return False
    label = content.get("label") if isinstance(content, dict) else None
    return isinstance(label, int | float) and not isinstance(label, bool)
