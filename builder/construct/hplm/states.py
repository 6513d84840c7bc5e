"""The lower states of texts, kept on disk: a second tuning on the same texts computes the upper layers only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from backends.home import Home
from backends.lower.settings import LowerDtype
from backends.registry.entries import DomainEntry
from backends.root.tokenizer import Text
from backends.storage import file_checksum, json_checksum, remove_folder
from builder.construct.hplm.exact_lower import ComputedFragments, exact_lower
from builder.construct.hplm.state_rows import EncodedRow, StateRows, size_of_store, stored_rows
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.examples import Example, task_text
from builder.construct.tasks.objective import Objective
from builder.lifecycle.leftovers import forgotten_states
from builder.progress import Report, Step

MAX_STORED_BYTES = 20 << 30
_FORMAT_VERSION = 5
_TEXTS_PER_BATCH = 256
_HIDDEN_KEPT_S = 24 * 3600


class StateCache:
    """The stores of one domain version, and of what its lower layers compute in; `rows` reads one or makes it."""

    def __init__(self, home: Home, domain: DomainEntry, dtype: LowerDtype = "bf16") -> None:
        self._home = home
        self._domain = domain
        self._dtype: LowerDtype = dtype

    def rows(self, texts: Sequence[Text], with_words: bool, what: str, report: Report) -> StateRows:
        """`what` names the texts in the progress."""
        store = self._home.states / self._key(texts, with_words)

        def done(count: int) -> None:
            report(Step(f"look up the {what} texts", count, len(texts)))

        rows = stored_rows(store, lambda: self._encoded(texts, with_words, done))
        remove_forgotten(self._home)
        _remove_oldest(self._home.states, keep=store)
        return rows

    def _key(self, texts: Sequence[Text], with_words: bool) -> str:
        digest = xxhash.xxh3_128()
        for text in texts:
            digest.update(repr(text).encode("utf-8", "surrogatepass"))
        headers = [file_checksum(self._home.path / folder / "header.json") for folder in self._domain.folders]
        return json_checksum(
            {
                "format": _FORMAT_VERSION,
                "tables": headers,
                "layers": ComputedFragments(self._home, self._domain, self._dtype).identity,
                "dtype": self._dtype,
                "texts": digest.hexdigest(),
                "words": with_words,
            }
        )

    def _encoded(self, texts: Sequence[Text], with_words: bool, done: Callable[[int], None]) -> Iterator[EncodedRow]:
        lower_model = exact_lower(self._home, self._domain, self._dtype)
        for start in range(0, len(texts), _TEXTS_PER_BATCH):
            batch = texts[start : start + _TEXTS_PER_BATCH]
            encoded = lower_model.encode(batch, [with_words] * len(batch))
            yield from zip(encoded.rows, encoded.words, encoded.middles, strict=True)
            done(start + len(batch))


def encoded_set(
    home: Home,
    domain: DomainEntry,
    objective: Objective[Any],
    examples: Sequence[Example],
    what: str,
    report: Report,
    dtype: LowerDtype = "bf16",
) -> EncodedSet:
    """The examples' hidden rows, from the cache or computed, with the task's target of each."""
    texts = [task_text(example) for example in examples]
    rows = StateCache(home, domain, dtype).rows(texts, objective.about_words, what, report)
    return EncodedSet(rows, objective.targets(examples, rows.words), rows.lengths, rows.middles)


def _remove_oldest(states: Path, keep: Path) -> None:
    """Drop what was used longest ago until the rest is within the limit; what took hours to make stays its day."""
    stores = [path for path in states.glob("*") if not path.name.startswith(".")]
    total_bytes = sum(_size_bytes(path) for path in states.glob(".*"))
    for store in sorted(stores, key=_used_at, reverse=True):
        total_bytes += _size_bytes(store)
        if total_bytes > MAX_STORED_BYTES and store != keep:
            remove_folder(store)


def remove_forgotten(home: Home) -> None:
    """Remove what teachers made a day ago, and what killed builds left behind; a lock may be held however old it is."""
    for path in forgotten_states(home, _HIDDEN_KEPT_S):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _size_bytes(path: Path) -> int:
    """Return the size of a store or of a file."""
    try:
        return size_of_store(path) if path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0
