"""How fast does PLOT turn tokens into rows and rows into hidden states, on one core, warm and cold?

The table and the text are made up together: a pool of phrases, asked for by Zipf's law. Fragments within a phrase are
in the table, in the order of their frequency; those across phrases mostly are not and fall back.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from backends.errors import HplmError
from backends.plot import PlotChain, Store, Table, TableSpec, fragment_keys, pack, right_bigram
from backends.plot.arrays import Found, Ids, Keys, Rows
from bench.kit.entry import Result, at_least, bench
from bench.kit.random_table import write_table

Batch = TypeVar("Batch")
Row = dict[str, Any]
Find = Callable[[Keys], tuple[Rows, Found]]

FINGERPRINT = "bench"
PHRASE_TOKENS = 10
APPEND_ENTRIES = 1 << 16


@dataclass(frozen=True)
class Settings:
    entries: int
    hidden_size: int
    rows: int
    row_tokens: int
    batches: int
    cold_batches: int
    passes: int
    vocab_size: int = 30_522
    bigrams: int = 200_000
    timing: str = "wall clock on one core, every batch at the median of its passes; cold: one pass"
    values: str = "one random block of 65536 entries, repeated"
    cold: str = "table closed, posix_fadvise DONTNEED on its files, opened again; includes checking the blocks"

    @property
    def batch_tokens(self) -> int:
        return self.rows * self.row_tokens

    @property
    def row_offsets(self) -> Ids:
        return np.arange(0, self.batch_tokens + 1, self.row_tokens)


FULL = Settings(entries=10_000_000, hidden_size=384, rows=64, row_tokens=128, batches=48, cold_batches=4, passes=7)
QUICK = Settings(entries=250_000, hidden_size=384, rows=64, row_tokens=128, batches=24, cold_batches=4, passes=7)


class Text:
    """Phrases in the order of their frequency, and batches of rows strung together from them."""

    def __init__(self, settings: Settings, rng: np.random.Generator) -> None:
        self._settings = settings
        self._rng = rng
        # One part in fifty more than needed, since a few fragments occur in two phrases.
        count = int(settings.entries / (PHRASE_TOKENS - 2) * 1.02) + 1
        self._phrases = rng.integers(1, settings.vocab_size, (count, PHRASE_TOKENS))

    def batch(self) -> Ids:
        """Token ids of one flat batch; the phrase of rank r is drawn with a probability in proportion to 1 / r."""
        tokens = self._settings.batch_tokens
        draws = self._rng.random(tokens // PHRASE_TOKENS + 1)
        ranks = np.exp(draws * np.log(len(self._phrases))).astype(np.int64) - 1
        token_ids: Ids = self._phrases[ranks].reshape(-1)[:tokens]
        return token_ids

    def trigram_keys(self) -> Keys:
        """Distinct fragments within phrases, those of more frequent phrases first, mixed where nearly as frequent."""
        inner = np.lib.stride_tricks.sliding_window_view(self._phrases, 3, axis=1)
        keys = pack(inner.reshape(-1, 3))
        octave = np.floor(np.log2(np.arange(len(self._phrases)) + 1)).repeat(inner.shape[1])
        keys = keys[np.argsort(octave + self._rng.random(keys.size), kind="stable")]
        first = np.sort(np.unique(keys, return_index=True)[1])
        distinct: Keys = keys[first[: self._settings.entries]]
        return distinct

    def bigram_keys(self) -> Keys:
        offsets = self._settings.row_offsets
        batches = -(-self._settings.bigrams // self._settings.batch_tokens)
        keys = [right_bigram(fragment_keys(self.batch(), offsets)) for _ in range(batches)]
        return np.unique(np.concatenate(keys))


def build_table(folder: Path, settings: Settings, text: Text, rng: np.random.Generator) -> float:
    """Build and publish the table; returns the seconds that took, the text's own not counted."""
    spec = TableSpec("bench@1", FINGERPRINT, settings.hidden_size, settings.vocab_size)
    block = rng.standard_normal((APPEND_ENTRIES, 3, settings.hidden_size), np.float32).astype(np.float16)
    stores = {
        Store.TRI: text.trigram_keys(),
        Store.BI: text.bigram_keys(),
        Store.UNI: np.arange(settings.vocab_size, dtype=np.uint64),
    }
    start_seconds = time.perf_counter()
    write_table(folder, spec, stores, block)
    return time.perf_counter() - start_seconds


def drop_from_memory(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def items_per_second(
    work: Callable[[Batch], object], batches: Sequence[Batch], items_per_batch: int, passes: int
) -> float:
    """Over all batches, each at the median of its passes."""
    seconds = np.array([[_seconds(work, batch) for batch in batches] for _ in range(passes)])
    return float(len(batches) * items_per_batch / np.median(seconds, axis=0).sum())


def _seconds(work: Callable[[Batch], object], batch: Batch) -> float:
    start_seconds = time.perf_counter()
    work(batch)
    return time.perf_counter() - start_seconds


def measure_keys(table: Table, batches: Sequence[Keys], settings: Settings) -> list[Row]:
    """The three ways from keys to rows, on the same keys; all agree on what they find."""
    keys = table.keys(Store.TRI)
    index: Find = partial(table.find, Store.TRI)
    ways: dict[str, Find] = {"PLOT": index, "searchsorted": searchsorted(keys), "dict": dictionary(keys)}
    expected_rows, expected_found = index(batches[0])
    results: list[Row] = []
    for name, way in ways.items():
        rows, found = way(batches[0])
        if not (np.array_equal(found, expected_found) and np.array_equal(rows[found], expected_rows[found])):
            raise HplmError(f"{name} finds other rows than the index")
        per_second = items_per_second(way, batches, settings.batch_tokens, settings.passes)
        results.append({"step": "keys -> rows", "way": name, "state": "warm", "per_second": per_second})
    return results


def searchsorted(keys: Keys) -> Find:
    order = np.argsort(keys)
    ordered = keys[order]

    def find(batch: Keys) -> tuple[Rows, Found]:
        at = np.minimum(ordered.searchsorted(batch), ordered.size - 1)
        return order.take(at), ordered.take(at) == batch

    return find


def dictionary(keys: Keys) -> Find:
    rows = dict(zip(keys.tolist(), range(keys.size), strict=True))

    def find(batch: Keys) -> tuple[Rows, Found]:
        found = np.array([rows.get(key, -1) for key in batch.tolist()])
        return found, found >= 0

    return find


def measure_states(chain: PlotChain, batches: Sequence[Ids], settings: Settings) -> list[Row]:
    offsets = settings.row_offsets
    resolved = [chain.resolve(batch, offsets) for batch in batches]
    states = items_per_second(
        lambda batch: chain.states(batch, offsets), resolved, settings.batch_tokens, settings.passes
    )
    whole = items_per_second(
        lambda batch: chain.lookup(batch, offsets), batches, settings.batch_tokens, settings.passes
    )
    one_row = offsets[:2]
    short = items_per_second(
        lambda batch: chain.lookup(batch[: settings.row_tokens], one_row), batches, settings.row_tokens, settings.passes
    )
    return [
        {"step": "rows -> hidden states", "way": "PLOT", "state": "warm", "per_second": states},
        {"step": "tokens -> hidden states", "way": "PLOT", "state": "warm", "per_second": whole},
        {"step": "tokens -> hidden states, one row at a time", "way": "PLOT", "state": "warm", "per_second": short},
    ]


def measure_cold(folder: Path, text: Text, settings: Settings) -> list[Row]:
    """Each step with nothing of the table in memory when it begins."""
    offsets = settings.row_offsets
    steps: dict[str, Callable[[PlotChain, Ids], object]] = {
        "keys -> rows": lambda chain, batch: chain.resolve(batch, offsets),
        "tokens -> hidden states": lambda chain, batch: chain.lookup(batch, offsets),
    }
    results: list[Row] = []
    for step, work in steps.items():
        drop_from_memory(folder)
        batches = [text.batch() for _ in range(settings.cold_batches)]
        with Table.open(folder, FINGERPRINT) as table:
            do = partial(work, PlotChain([table]))
            per_second = items_per_second(do, batches, settings.batch_tokens, passes=1)
        results.append({"step": step, "way": "PLOT", "state": "cold", "per_second": per_second})
    return results


def measure(folder: Path, settings: Settings, seed: int) -> Result:
    rng = np.random.default_rng(seed)
    text = Text(settings, rng)
    build_seconds = build_table(folder, settings, text, rng)
    cold = measure_cold(folder, text, settings)
    open_seconds = _seconds(lambda path: Table.open(path, FINGERPRINT).close(), folder)
    batches = [text.batch() for _ in range(settings.batches)]
    with Table.open(folder, FINGERPRINT) as table:
        chain = PlotChain([table])
        states = measure_states(chain, batches, settings)
        keys = measure_keys(table, [fragment_keys(batch, settings.row_offsets) for batch in batches], settings)
        levels = np.concatenate([chain.resolve(batch, settings.row_offsets).levels for batch in batches])
        hit_rates = chain.statistics(levels).rates()
    index, by_search, by_dict = (row["per_second"] for row in keys)
    figures = {
        "keys_per_second": index,
        "over_searchsorted": index / by_search,
        "over_dict": index / by_dict,
        "hidden_tokens_per_second": states[0]["per_second"],
        "lookup_tokens_per_second": states[1]["per_second"],
        "one_row_tokens_per_second": states[2]["per_second"],
        "cold_keys_per_second": cold[0]["per_second"],
        "cold_lookup_tokens_per_second": cold[1]["per_second"],
        "open_seconds": open_seconds,
        "build_seconds": build_seconds,
        **{f"hit_rate_{name.partition('@')[0]}": rate for name, rate in hit_rates.items()},
    }
    return Result(asdict(settings), figures, keys + states + cold)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--entries", type=int, help="tri-grams in the table")
    arguments.add_argument("--workdir", type=Path, help="where the table is built; it is deleted at the end")


@bench(
    "lookup",
    bars={"keys_per_second": at_least(3e6)},
    add_options=add_options,
)
def lookup(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    settings = replace(settings, entries=options.entries or settings.entries)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hplm-bench-", dir=options.workdir) as workdir:
        return measure(Path(workdir) / "bench@1", settings, options.seed)


if __name__ == "__main__":
    lookup.main()
