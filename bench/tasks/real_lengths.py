"""How long the texts of real tasks are."""

from __future__ import annotations

from pathlib import Path

from backends.root.tokenizer import RootTokenizer
from bench.tasks.data import Caps, load_task, task_names
from builder.construct.tasks.examples import task_text


def real_lengths(data: Path, tokenizer: Path, max_tokens: int) -> dict[str, list[int]]:
    """Each task's test texts, in tokens."""
    encode = RootTokenizer(tokenizer, max_tokens).encode
    result = {}
    for name in task_names(data):
        texts = [task_text(example) for example in load_task(data, name, Caps(train=1, dev=1, test=1000)).test]
        result[name] = [int(length) for length in encode(texts, [False] * len(texts)).lengths]
    return result
