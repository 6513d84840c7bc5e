"""Does a server that fills its own tables become as good, and as fast, as one whose tables held everything?

A copy of a home is served by the real Triton with `--missing compute` and asked held-out texts twice, one at a time,
all hPLMs in turn. Then a second copy is made whose tables hold all that was learned, and both servers are asked the
same texts by turns, so that what else the machine does meets both. Logits are compared with the slow reference, which
computes every fragment with the lower layers.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.settings import FillingSettings, LowerDtype, Missing
from backends.plot.header import TableHeader
from backends.plot.overlay_log import LogOrigin, LogReader, Records, overlay_folder, read_header
from backends.plot.table import Table
from backends.plot.writer import TableWriter
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from bench.fidelity import Question, compare
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.reference import ReferenceHplm
from bench.kit.scratch_home import copied_home
from bench.kit.served import Serving, served
from bench.tasks.held_out import held_out_texts
from builder.serving import TritonServer
from hplm_client import Classification, HplmClient

Texts = Sequence[tuple[str, str]]
"""hPLM and text, in the order in which they are asked."""

Latencies = npt.NDArray[np.float64]

# A process hands its counts to Triton every two seconds, and reads what others learned twice a second.
_SETTLE_S = 3.0
_COUNT = re.compile(r'^hplm_plot_fragments_total\{level="([^"]+)"[^}]*\} (\d+)', re.MULTILINE)
_APPENDED_AT_ONCE = 4096
_SERVERS = ((0, "self-filled"), (1, "full table"))


@dataclass(frozen=True)
class Settings:
    texts: int
    compared: int
    rounds: int
    overlay_mb: int = 1024
    dtype: LowerDtype = "fp32"
    clients: str = "one, one text a request"
    by_turns: str = "both servers asked text by text, in rounds"


FULL = Settings(texts=5_000, compared=300, rounds=3)
QUICK = Settings(texts=100, compared=16, rounds=3)


@dataclass(frozen=True)
class Pass:
    """One way through all texts; `found_share` of the fragments were in a table or an overlay."""

    name: str
    latencies_ms: list[float]
    found_share: float

    @property
    def p99_ms(self) -> float:
        return float(np.percentile(self.latencies_ms, 99))

    def row(self) -> dict[str, object]:
        p50 = float(np.percentile(self.latencies_ms, 50))
        return {"pass": self.name, "found share": self.found_share, "p50 ms": p50, "p99 ms": self.p99_ms}


class Served:
    """A running server and what its lower half has counted."""

    def __init__(self, server: TritonServer) -> None:
        self._metrics_url = server.metrics_url
        self._client = HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1)

    def ask(self, texts: Texts) -> list[float]:
        """How long each text took, in milliseconds."""
        latencies_ms = []
        for hplm, text in texts:
            started_s = time.perf_counter()
            self._client.infer(hplm, text)
            latencies_ms.append(1000 * (time.perf_counter() - started_s))
        return latencies_ms

    def passing(self, name: str, texts: Texts) -> Pass:
        before = self._counts()
        latencies_ms = self.ask(texts)
        time.sleep(_SETTLE_S)
        counts = {level: count - before.get(level, 0) for level, count in self._counts().items()}
        found = sum(count for level, count in counts.items() if _is_found(level))
        return Pass(name, latencies_ms, found / max(1, sum(counts.values())))

    def answers(self, texts: Texts) -> list[Classification]:
        answers = [self._client.infer(hplm, text) for hplm, text in texts]
        return [answer for answer in answers if isinstance(answer, Classification)]

    def _counts(self) -> dict[str, int]:
        with urllib.request.urlopen(self._metrics_url) as response:
            return {level: int(count) for level, count in _COUNT.findall(response.read().decode())}


def _is_found(level: str) -> bool:
    """Whole fragments of tables have the table's name; of what else there is only overlays count."""
    return level.endswith("/overlay") or ("@" in level and "/" not in level)


@contextmanager
def serving(home: Home, missing: Missing, settings: Settings) -> Iterator[Served]:
    lower = FillingSettings(missing, settings.overlay_mb, dtype=settings.dtype).parameters
    serving = Serving("bench-repository", lower_instances=2, lower=lower, upper={"dtype": settings.dtype})
    with served(home, serving) as server:
        yield Served(server)


def fill_tables(full: Home, learned: Home) -> None:
    """Put what `learned` has in its overlays into the tables of `full`."""
    for overlay in sorted((learned.path / "plots").glob("*/*.overlay")):
        source = overlay.with_name(overlay.name.removesuffix(".overlay"))
        target = full.path / source.relative_to(learned.path)
        with Table.open(source, TableHeader.read(source).spec.root_fingerprint) as table:
            _write_filled(table, target.with_name(target.name + ".filled"))
        shutil.rmtree(target)
        target.with_name(target.name + ".filled").rename(target)


def _write_filled(table: Table, target: Path) -> None:
    main = table.spec.main
    with TableWriter(target, table.spec) as writer:
        for store in (store for store in table.spec.stores if store in table):
            rows = np.arange(table.store(store).entries)
            keys = rows.astype(np.uint64) if store is table.spec.stores[-1] else table.keys(store)
            writer.append(store, keys, table.vectors(store, rows))
        records = np.concatenate(list(_learned(table)))
        distinct = np.unique(records["key"], return_index=True)[1]
        for part in np.array_split(records[distinct], distinct.size // _APPENDED_AT_ONCE + 1):
            writer.append(main, part["key"], part["vectors"].reshape(part.size, main.vectors, -1))
        writer.finish(table.header.origin)


def _learned(table: Table) -> Iterator[Records]:
    origins = {path: LogOrigin.of(read_header(path)) for path in overlay_folder(table.folder).glob("*.log")}
    if len(set(origins.values()) - {None}) > 1:
        raise InvalidArgumentError(f"{table.folder}: what was learned is of several lower layers or dtypes")
    for path, origin in origins.items():
        if origin is not None:
            yield from LogReader(path, origin).read()


def by_turns(self_filled: Served, full: Served, texts: Texts, rounds: int) -> Latencies:
    """Each text of both servers, one right after the other, in milliseconds.

    Shape:
        `[rounds, 2, texts]`.
    """
    taken_ms = np.empty((rounds, 2, len(texts)))
    for number in range(rounds):
        for index in range(len(texts)):
            order = (0, 1) if (number + index) % 2 else (1, 0)
            for which in order:
                taken_ms[number, which, index] = (self_filled, full)[which].ask([texts[index]])[0]
    return taken_ms


def served_passes(taken_ms: Latencies) -> list[Pass]:
    """All requests by turns of each server, then the median of each text's rounds of each."""
    pooled = [Pass(f"{name}, by turns", taken_ms[:, index].ravel().tolist(), 1.0) for index, name in _SERVERS]
    medians = np.median(taken_ms, axis=0)
    return [*pooled, *(Pass(f"{name}, medians of texts", medians[index].tolist(), 1.0) for index, name in _SERVERS)]


def chosen_texts(home: Home, path: Path | None, hplms: Sequence[HplmEntry], count: int, seed: int) -> Texts:
    """Draw texts from a file; without one, from what the demo has kept out."""
    if path is None:
        lines = [text for entry in hplms for text in held_out_texts(home, entry.id)]
    else:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    texts = list(dict.fromkeys(line for line in lines if line))
    if len(texts) < count and path is not None:
        raise InvalidArgumentError(f"{path} has {len(texts)} different texts; {count} are needed")
    chosen = random.Random(seed).sample(texts, min(count, len(texts)))
    return [(hplms[index % len(hplms)].id, text) for index, text in enumerate(chosen)]


def logit_difference(home: Home, server: Served, hplms: Sequence[HplmEntry], texts: Texts) -> float:
    references = {entry.id: ReferenceHplm(home, entry) for entry in hplms}
    exact = [references[hplm].logits(text) for hplm, text in texts]
    asked = [Question(hplm, text, logits, logits) for (hplm, text), logits in zip(texts, exact, strict=True)]
    return max(each.logit_difference for each in compare(asked, server.answers(texts)).values())


def measure(home: Home, texts_path: Path | None, settings: Settings, seed: int, work: Path) -> Result:
    hplms = [entry for entry in Registry.open(home).hplms() if entry.task == "classification" and not entry.pair]
    if not hplms:
        raise InvalidArgumentError(f"{home.path} has no hPLM that classifies single texts")
    learned = copied_home(home.path, work / "learned")
    texts = chosen_texts(home, texts_path, hplms, settings.texts, seed)
    with serving(learned, Missing.COMPUTE, settings) as self_filled:
        passes = [self_filled.passing(name, texts) for name in ("first", "second")]
        difference = logit_difference(learned, self_filled, hplms, texts[: settings.compared])
        full_home = copied_home(home.path, work / "full")
        fill_tables(full_home, learned)
        with serving(full_home, Missing.FALLBACK, settings) as full:
            passes.append(full.passing("full table", texts))
            by_turn = served_passes(by_turns(self_filled, full, texts, settings.rounds))
    first, second, _ = passes
    mine, theirs, my_medians, their_medians = by_turn
    figures = {
        "first_pass_found_share": first.found_share,
        "second_pass_found_share": second.found_share,
        "compute_max_logit_difference": difference,
        "p99_ratio_to_full_table": mine.p99_ms / theirs.p99_ms,
        "p99_ratio_of_medians": my_medians.p99_ms / their_medians.p99_ms,
        "first_pass_p99_ratio_to_second": first.p99_ms / second.p99_ms,
        "first_pass_mean_ms": float(np.mean(first.latencies_ms)),
        "second_pass_mean_ms": float(np.mean(second.latencies_ms)),
        "overlay_mb": sum(path.stat().st_size for path in learned.path.glob("plots/*/*.overlay/*.log")) / (1 << 20),
    }
    rows = [each.row() for each in [*passes, *by_turn]]
    return Result({**vars(settings), "texts": len(texts), "hplms": len(hplms)}, figures, rows)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, default=Path("demo_home"), help="a home with hPLMs; it is copied")
    help_of_texts = "held-out texts, one a line; without, the demo's, which are fewer"
    arguments.add_argument("--texts", type=Path, help=help_of_texts)


@bench(
    "selffill",
    bars={
        "second_pass_found_share": at_least(0.999),
        "compute_max_logit_difference": at_most(2e-2),
        "p99_ratio_to_full_table": at_most(1.1),
    },
    add_options=add_options,
)
def selffill(options: Namespace) -> Result:
    torch.set_num_threads(1)  # The reference's tensors are so small that a second thread only waits.
    home = Home(options.home.absolute())
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as work:
        return measure(home, options.texts, QUICK if options.quick else FULL, options.seed, Path(work))


if __name__ == "__main__":
    selffill.main()
